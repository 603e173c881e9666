"""Synthetic reproductions for tests of claims, figures and tables: records from accuracies given by a function."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch

from advbnn.attacks import PGD
from advbnn.attacks.identity import settings_of
from advbnn.defenses.profiles import DEFENSES
from advbnn.evaluation.identity import DataIdentity, ModelIdentity
from advbnn.evaluation.outcomes import pack
from advbnn.evaluation.records import Record, Records
from advbnn.paper import Claim, Evidence, Experiment, check_claims
from advbnn.paper.evidence import Speed
from advbnn.paper.protocol import AUTHORS, RANDOM, Protocol
from advbnn.paper.published import table1

N = 10_000
Accuracy = Callable[[str, float], float]

CIFAR10 = Experiment(data="cifar10", like="cifar10", profile="authors_code")
DIGITS = Experiment(data="digits", like="digits", profile="ours")


def as_in_the_paper(defense: str, eps: float) -> float:
    """Accuracies near Table 1 for the two defences that it has; plausible ones for the others."""
    points = {
        **table1("cifar10", N),
        "rse": (84.0, 55.0, 26.0, 9.0, 4.0),
        "bnn": (91.0, 6.0, 0.5, 0.0, 0.0),
        "none": (93.0, 4.0, 0.2, 0.0, 0.0),
    }[defense.partition("-")[0]]
    return float(np.interp(eps, (0.0, 0.015, 0.035, 0.055, 0.07), points)) / 100


def record(label: str, share: float | None, n: int = N, **fields: Any) -> Record:
    """A record of a network with the given accuracy."""
    known: dict[str, Any] = {
        "kind": "clean",
        "name": "clean",
        "model": ModelIdentity(label=label, kind="VGG", sha256=label[0] * 64),
        "data": DataIdentity(name="cifar10", sha256="7e57" * 16, n=n),
        "samples": 20,
        "seeds": (0,),
        "batch_size": 250,
        "precision": "float32",
        "command": "advbnn reproduce all --data cifar10",
    }
    correct = () if share is None else (min(n, max(0, round(share * n))),)
    return Record(**{**known, "correct": correct, **fields})


def under(attack: PGD, name: str, label: str, share: float | None, **fields: Any) -> Record:
    """A record of an attack."""
    known = {"kind": "attack", "name": name, "attack": settings_of(attack), "threat": attack.threat}
    return record(label, share, **{**known, **fields})


def with_outcomes(found: Evidence, moved: int = 0) -> Evidence:
    """The same with outcomes per image: the first images are right, shifted by `moved` beyond 20 steps or samples."""
    records = []
    for one in found.records:
        first = moved if (one.at or 0) > 20 else 0
        right = (torch.arange(one.n) >= first) & (torch.arange(one.n) < first + sum(one.correct))
        records.append(replace(one, outcomes=(pack(right),)) if one.correct else one)
    return replace(found, records=Records(records))


def radius_records(p: Protocol, accuracy: Accuracy, labels: Iterable[str] = DEFENSES, n: int = N) -> list[Record]:
    """Table 1 and Figure 2 under the authors' attack."""
    return [
        under(p.authors_attack(eps), AUTHORS, label, accuracy(label, eps), curve="radius", at=eps, n=n)
        for label, eps in product(labels, p.radii)
    ]


def averaged_records(p: Protocol, accuracy: Accuracy, labels: Iterable[str] = RANDOM) -> list[Record]:
    """The same under averaged gradients."""
    return [
        under(p.averaged_attack(eps), p.averaged, label, accuracy(label, eps), curve="radius", at=eps)
        for label, eps in product(labels, p.table_radii)
    ]


def audits(p: Protocol, accuracy: Accuracy, inconclusive: int = 0) -> list[Record]:
    """Worst cases without flags, by the old rule if images are inconclusive."""
    found = []
    for label, eps in product(DEFENSES, p.audit_radii):
        worst = under(p.authors_attack(eps), "standard", label, accuracy(label, eps), kind="worst_case")
        left = min(inconclusive, N - worst.correct[0])
        details = {"attacks": [], "flags": [], "random": label in RANDOM, "inconclusive": [left]}
        found.append(replace(worst, details=details if inconclusive else {**details, "certain": list(worst.correct)}))
    return found


def transfers(protocol: Protocol, rho: Callable[[str, str], float]) -> list[Record]:
    """All pairs with the given affinity; every network has 90 % clean and 10 % under its own attack."""
    attack = protocol.authors_attack(protocol.transfer_radius)
    cleans = {label: record(label, 0.9) for label in DEFENSES}
    made = list(cleans.values())
    for source, target in product(DEFENSES, repeat=2):
        share = 0.1 if source == target else 0.9 - 0.8 * rho(source, target)
        origin = cleans[source].model
        made.append(under(attack, f"from {source}", target, share, kind="transfer", source=origin))
    return made


def ensemble_curves(protocol: Protocol, lost: Callable[[int], float]) -> list[Record]:
    """Accuracy of Adv-BNN by the number of weight samples, `lost(size)` below the limit."""
    made = []
    for eps in (0.0, *protocol.study_radii):
        for size in protocol.sizes:
            value = as_in_the_paper("adv_bnn", eps) - lost(size)
            place: dict[str, Any] = {"curve": "ensemble", "at": float(size), "samples": size}
            attacked = under(protocol.authors_attack(eps or 1), AUTHORS, "adv_bnn", value, **place)
            made.append(attacked if eps else record("adv_bnn", value, **place))
    return made


def steps_curves(protocol: Protocol, lost: Callable[[int], float]) -> list[Record]:
    """Accuracy of Adv-BNN by the steps of the attack, reduced by `lost(count)`."""
    made = []
    for eps in protocol.study_radii:
        for count in protocol.steps:
            attack, share = protocol.authors_attack(eps, count), as_in_the_paper("adv_bnn", eps) - lost(count)
            made.append(under(attack, AUTHORS, "adv_bnn", share, curve="steps", at=float(count)))
    return made


def lipschitz_values(protocol: Protocol, values: Iterable[float], error: float = 0.01) -> list[Record]:
    """Local Lipschitz values: of adversarial training on training and test images, and of Adv-BNN."""
    attack = protocol.authors_attack(8 / 256)
    made = []
    for (label, part), value in zip(product(("adv", "adv_bnn"), ("train", "test")), values, strict=False):
        numbers = {"mean": value, "sd": 0.0, "min": value, "max": value, "se": error}
        details = dict.fromkeys(("first_order", "per_sample", "loss"), numbers)
        details["increase"] = numbers | {"mean": 1.2 * value}
        made.append(under(attack, part, label, None, kind="lipschitz", details=details))
    return made


def alphas(protocol: Protocol, clean: dict[float, float], robust: float = 0.45) -> list[Record]:
    """Adv-BNN by alpha."""
    eps = protocol.study_radii[1]
    made = []
    for alpha, share in clean.items():
        place: dict[str, Any] = {"curve": "alpha", "at": alpha}
        made.append(record("adv_bnn", share, **place))
        made.append(under(protocol.authors_attack(eps), AUTHORS, "adv_bnn", robust, **place))
        made.append(under(protocol.averaged_attack(eps), protocol.averaged, "adv_bnn", robust - 0.05, **place))
    return made


def evidence(records: Iterable[Record] = (), experiment: Experiment = CIFAR10, **fields: Any) -> Evidence:
    """The evidence of a folder with these records, including the paper's rows."""
    known = {"paper": table1(experiment.data, N)}
    return Evidence(experiment=experiment, records=Records(records), **known | fields)


def everything() -> Evidence:
    """A complete reproduction of CIFAR-10 in which the paper is right."""
    protocol = CIFAR10.protocol
    honest: Accuracy = lambda label, eps: 0.8 * as_in_the_paper(label, eps)  # noqa: E731
    kin = {"none": 0, "bnn": 0, "rse": 1, "adv": 1, "adv_bnn": 1}
    records = [
        *radius_records(protocol, as_in_the_paper),
        *averaged_records(protocol, lambda label, eps: as_in_the_paper(label, eps) - 0.01),
        *audits(protocol, honest),
        *transfers(protocol, lambda a, b: 0.3 if kin[a] != kin[b] else 0.55 if kin[a] else 0.86),
        *ensemble_curves(protocol, lambda size: 0.06 / size),
        *steps_curves(protocol, lambda count: -0.2 / count),
        *lipschitz_values(protocol, [0.5, 0.9, 0.4, 0.5]),
        *alphas(protocol, {1.0: 0.797, 0.1: 0.803, 0.01: 0.81}),
    ]
    return evidence(records, speeds=speeds(1000.0, 800.0))


def speeds(adv: float, adv_bnn: float) -> dict[str, Speed]:
    """Images per second of the two trainings; Adv-BNN has twice the parameters."""
    return {"adv": Speed(100, adv), "adv_bnn": Speed(200, adv_bnn)}


def claim(name: str, found: Evidence) -> Claim:
    """One of the claims."""
    return {one.name: one for one in check_claims(found)}[name]


def verdict(name: str, found: Evidence) -> str:
    """Its verdict alone."""
    return claim(name, found).verdict
