"""Records of measurements that nobody made, for tests of the report: five defences that behave as one would expect."""

import math
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import torch

from advbnn.attacks import PGD, paper_pgd
from advbnn.attacks.identity import settings_of
from advbnn.attacks.threat import Threat
from advbnn.evaluation.audit.flags import FLAGS, Flag
from advbnn.evaluation.curves import RADII
from advbnn.evaluation.identity import DataIdentity, ModelIdentity
from advbnn.evaluation.records import Record, Records
from advbnn.report import AttackedImage, ImagePrediction

N = 400
TEST = DataIdentity(name="digits", sha256="7e57" * 16, n=N)
TRAIN = DataIdentity(name="digits", sha256="7a17" * 16, n=1000)
BATTERY_RADII = (0.015, 0.035, 0.055, 0.07)

# clean accuracy; the radius at which the paper's attack halves it; how much of that radius the worst case needs
_DEFENCES = {
    "none": (0.975, 0.008, 0.95),
    "rse": (0.93, 0.034, 0.66),
    "adv": (0.915, 0.042, 0.93),
    "bnn": (0.97, 0.011, 0.9),
    "adv_bnn": (0.905, 0.056, 0.8),
}
LABELS = tuple(_DEFENCES)


def accuracy(label: str, eps: float, worst: bool = False) -> float:
    """An accuracy that falls with the radius."""
    clean, half, share = _DEFENCES[label]
    half *= share if worst else 1
    return clean / (1 + (eps / half) ** 2.6)


def record(label: str, share: float | None, **fields: Any) -> Record:
    """A record of `label`, right on about the given share of the images."""
    known: dict[str, Any] = {
        "kind": "clean",
        "name": "clean",
        "model": ModelIdentity(label=label, kind="Bayesian(Sequential)", sha256=label[0] * 64),
        "data": TEST,
        "samples": 20,
        "seeds": (0, 1, 2),
        "batch_size": 250,
        "precision": "float32",
        "seconds": 4.2,
        "versions": {"advbnn": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "device": "cpu (x86_64)"},
        "command": f"advbnn evaluate runs/{label}",
    }
    known |= fields
    if share is not None:
        n = known["data"].n
        known["correct"] = tuple(min(n, max(0, round(share * n) + shift)) for shift in (0, 2, -1))
    return Record(**known)


def attacked(label: str, eps: float, **fields: Any) -> Record:
    attack = paper_pgd(eps)
    known = {"kind": "attack", "name": "paper 20", "attack": settings_of(attack), "threat": attack.threat}
    return record(label, accuracy(label, eps), **known | fields)


def with_share(found: Record, share: float) -> Record:
    """The record with another accuracy, the same for every seed."""
    return replace(found, correct=(max(0, round(share * found.n)),) * len(found.seeds))


@cache  # intervals take time, and are kept with their records
def radius_curves() -> Records:
    return Records(attacked(label, eps, curve="radius", at=eps) for label in LABELS for eps in RADII)


@cache
def other_curves() -> Records:
    """Over the size of the ensemble without and under attack, over steps, and over EOT samples."""
    records = []
    for label in LABELS:
        clean, robust = accuracy(label, 0), accuracy(label, 0.035)
        for size in (1, 2, 5, 10, 20, 50):
            lost = 0.06 / size if label in ("rse", "bnn", "adv_bnn") else 0.0
            place: dict[str, Any] = {"samples": size, "curve": "ensemble", "at": float(size)}
            records.append(record(label, clean - lost, **place))
            records.append(with_share(attacked(label, 0.035, **place), robust - lost))
        for steps in (3, 9, 26, 78, 234, 1000):
            place = {
                "curve": "steps",
                "at": float(steps),
                "name": "paper",
                "attack": settings_of(paper_pgd(0.035, steps)),
            }
            records.append(with_share(attacked(label, 0.035, **place), robust * (0.93 + 0.4 / steps)))
        for eot in (1, 5, 20):
            attack = settings_of(PGD(Threat("linf", 0.035), eot=eot))
            place = {"curve": "eot", "at": float(eot), "name": "pgd", "attack": attack}
            records.append(with_share(attacked(label, 0.035, **place), robust * (0.85 + 0.15 / eot)))
    return Records(records)


@cache
def transfers() -> Records:
    """All pairs at one radius; the undefended and the defended are nearer to their own kind."""
    kinship = {"none": 0, "bnn": 0, "rse": 1, "adv": 1, "adv_bnn": 1}
    records = []
    for source in LABELS:
        for target in LABELS:
            clean, own = accuracy(target, 0), accuracy(target, 0.035)
            rho = 1.0 if source == target else 0.82 if kinship[source] == kinship[target] else 0.3
            given = record(source, None).model
            fields = {"kind": "transfer", "name": f"from {source}", "threat": Threat("linf", 0.035), "source": given}
            records.append(record(target, clean - rho * (clean - own), attack={"name": "PGD"}, **fields))
    return Records(records)


@cache
def uncertainties() -> Records:
    records = []
    for label in LABELS:
        for name, eps in (("clean", 0.0), ("paper 20", 0.035)):
            details = _calibration(accuracy(label, eps), 0.3 if eps and label in ("none", "bnn") else 0.05)
            made = record(label, accuracy(label, eps)) if eps == 0 else attacked(label, eps)
            records.append(replace(made, kind="uncertainty", name=name, details=details))
    return Records(records)


def _calibration(right: float, overconfident: float) -> dict[str, Any]:
    bins = 15
    counts = [0 if k < 2 else round(3 * N * (k + 1) ** 2 / 1240) for k in range(bins)]
    confidence = [None if count == 0 else (k + 0.6) / bins for k, count in enumerate(counts)]
    accuracies = [None if c is None else max(0.0, c - overconfident * c) for c in confidence]
    coverages = [k / 20 for k in range(1, 21)]
    risks = [(1 - right) * coverage**0.8 for coverage in coverages]
    values = {
        "nll": -math.log(max(right, 0.01)),
        "brier": 1.5 * (1 - right),
        "ece": overconfident / 2,
        "aurc": sum(risks) / len(risks),
        "entropy": 1 - right + 0.1,
        "expected_entropy": 0.8 * (1 - right) + 0.1,
        "mutual_information": 0.2 * (1 - right),
    }
    spreads = {name: {"mean": v, "sd": 0.01, "min": 0.99 * v, "max": 1.01 * v} for name, v in values.items()}
    bars = {
        "edges": [k / bins for k in range(bins + 1)],
        "count": counts,
        "confidence": confidence,
        "accuracy": accuracies,
    }
    return {**spreads, "reliability": bars, "risk_coverage": {"coverage": coverages, "risk": risks}}


@cache
def detections() -> Records:
    scores = ("entropy", "expected_entropy", "mutual_information", "least_confidence")
    records = []
    for label in LABELS:
        for name, base in (("paper 20", 0.7), ("noise", 0.9)):
            values = {s: {"mean": base - 0.05 * i, "sd": 0.01, "min": 0.6, "max": 0.95} for i, s in enumerate(scores)}
            fields: dict[str, Any] = {"kind": "detection", "name": name, "details": {"auroc": values}}
            if name == "noise":
                foreign = DataIdentity(name="noise", sha256="00" * 32, n=100)
                records.append(record(label, accuracy(label, 0), against=foreign, **fields))
            else:
                fields["details"]["auroc_of_successes"] = None if label == "adv" else values
                records.append(attacked(label, 0.035, **fields))
    return Records(records)


@cache
def steepness() -> Records:
    records = []
    for label in LABELS:
        steep = 6 * (1 - accuracy(label, 0.035))
        for name, data, share in (("train", TRAIN, 0.7), ("test", TEST, 1.0)):
            means = {"first_order": steep, "per_sample": 1.3 * steep, "loss": 0.3, "increase": 0.8 * steep}
            details = {
                key: {"mean": share * v, "sd": 0.01, "min": 0.9 * v, "max": 1.1 * v, "se": 0.05 * v}
                for key, v in means.items()
            }
            found = attacked(label, 0.035, kind="lipschitz", name=name, data=data, details=details)
            records.append(replace(found, correct=()))
    return Records(records)


@cache
def clean() -> Records:
    return Records(record(label, accuracy(label, 0)) for label in LABELS)


@cache
def audits() -> Records:
    """A worst case with flags for each defence and radius; one defence hides its gradients, another does at times."""
    records = []
    for label in LABELS:
        for eps in BATTERY_RADII:
            fields: dict[str, Any] = {"name": "quick", "threat": Threat("linf", eps), "attack": {"name": "audit"}}
            fields["command"] = f"advbnn audit runs/{label} --level quick"
            robust = record(label, accuracy(label, eps, worst=True), kind="worst_case", **fields)
            records.append(replace(robust, details=_audit_details(label, eps, robust)))
    return Records(records)


def _flag(name: str, label: str, eps: float) -> dict[str, Any]:
    raised = (label, name) == ("rse", "black_box") or ((label, name) == ("adv_bnn", "single_sample") and eps > 0.05)
    seen = f"Square leaves {100 * eps:.1f} % right, PGD {200 * eps:.1f} %"
    ending = "The gradients are masked" if raised else "As expected"
    return asdict(Flag(name, raised, f"{seen}. {ending}.", {"eps": eps}))


def _audit_details(label: str, eps: float, robust: Record) -> dict[str, Any]:
    def entry(name: str, role: str, attack: dict[str, Any] | None, correct: tuple[int, ...]) -> dict[str, Any]:
        return {"name": name, "role": role, "on": "all", "attack": attack, "n": [N] * 3, "correct": list(correct)}

    attacks = [
        entry("clean", "clean", None, record(label, accuracy(label, 0)).correct),
        entry("PGD-20", "paper", settings_of(paper_pgd(eps)), record(label, accuracy(label, eps)).correct),
        entry("Square", "black box", {"name": "Square"}, robust.correct)
        | {"on": "survivors", "n": [count + 5 for count in robust.correct]},
    ]
    facts = {
        "certain": list(robust.correct),
        "inconclusive": [1, 0, 2],
        "error": 0.01,
        "max_weight_samples": 320,
        "mean_weight_samples": 24.5,
    }
    return {"attacks": attacks, **facts, "random": True, "flags": [_flag(name, label, eps) for name in FLAGS]}


@cache
def everything() -> Records:
    accuracies = clean() + radius_curves() + audits()
    return accuracies + other_curves() + transfers() + uncertainties() + detections() + steepness()


def picture(model: str, channels: int = 1, fooled: bool = True) -> AttackedImage:
    """An image of noise, and the same with more noise."""
    clean = torch.rand(channels, 8, 8, generator=torch.Generator().manual_seed(0))
    right = ImagePrediction(label="seven", probability=0.98, entropy=0.11, disagreement=0.01)
    wrong = ImagePrediction(label="two", probability=0.55, entropy=1.2, disagreement=0.3)
    known: dict[str, Any] = {"attack": "PGD-20", "eps": 0.1, "truth": "seven", "classes": 10}
    images = {"clean": clean, "adversarial": (clean + 0.1).clamp(0, 1)}
    return AttackedImage(model=model, before=right, after=wrong if fooled else right, **known, **images)
