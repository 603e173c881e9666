"""The work of an audit: attack and probe batch by batch, then compute the worst case and the flags of each radius."""

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.attacks import PGD, GradientMaskingWarning
from advbnn.attacks.losses import margin
from advbnn.attacks.oracle import is_random
from advbnn.attacks.threat import Threat
from advbnn.data.augment import to_float
from advbnn.data.imageset import row_numbers
from advbnn.evaluation.accuracy import CLEAN, Evaluation, Options, Perturbation, SmallSampleWarning, attack_settings
from advbnn.evaluation.attackable import attackable
from advbnn.evaluation.audit.attack_suite import ALL, SURVIVORS, Level, attack_suite, even_change
from advbnn.evaluation.audit.flags import Findings, all_flags
from advbnn.evaluation.audit.probes import probe
from advbnn.evaluation.audit.sequential_test import RobustSet
from advbnn.evaluation.batchwise import Batch
from advbnn.evaluation.records import Plan, Records
from advbnn.modules import evaluating
from advbnn.randomness import derive_seed

ERROR = 0.01
"""The probability, for each image, that the sequential test decides wrongly."""


class AuditRunner:
    """Runs the attack suites of all radii, the smallest first; `transfer_from` and `given` as for `audit`."""

    def __init__(
        self,
        evaluation: Evaluation,
        options: Options,
        threats: Sequence[Threat],
        level: Level,
        *,
        transfer_from: Mapping[str, nn.Module],
        given: Mapping[str, Perturbation],
    ) -> None:
        data, rows = evaluation.data, evaluation.rows
        chosen = torch.arange(len(data)) if rows is None else row_numbers(rows, len(data))
        # a few images show whether the network is random and returns probabilities
        stored, labels = next(iter(data.gather([chosen[:16]])))
        x, _ = evaluation.prepared(to_float(stored), labels)
        with evaluation.explain_input_errors():
            model = attackable(evaluation.model, x)
        with evaluating(model):
            random = is_random(model, x)
        pixels = x[0].numel()
        self.model, self.level, self.random = model, level, random
        suite = functools.partial(
            attack_suite,
            model=model,
            classes=len(data.classes),
            pixels=pixels,
            random=random,
            transfer_from=transfer_from,
            given=given,
        )
        self.suites = [suite(level, threat) for threat in threats]
        eot, grey = level.eot[-1] if random else 1, _radius_to_grey(threats[-1], pixels)
        # at a radius at which no classifier can be robust
        self.sanity_attack = None if grey is None else PGD(grey, steps=level.steps[0], eot=eot)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallSampleWarning)  # the first evaluation has warned
            self.evaluation = Evaluation(model, data, **options | {"samples": evaluation.samples if random else 1})

    def run(self, plans: Sequence[Plan]) -> Records:
        """The records of the worst case, one for each radius."""
        return self.evaluation.measure(plans, self._attack_batch, self._details)

    def _attack_batch(self, x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        """All results of one batch."""
        x, y = self.evaluation.prepared(x, y)
        threat, seeds = self.suites[0][0].attack.threat, self.evaluation.seed_list
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradientMaskingWarning)  # the flags report it
            by_seed = [self._attack_all(x, y, seed, batch) for seed in seeds]
            seed = derive_seed(seeds[0], "probe", batch.number)
            probes = probe(self.model, x, y, threat, self.evaluation.samples, seed)
        return {**probes, **{name: torch.stack([one[name] for one in by_seed], -1) for name in by_seed[0]}}

    def _attack_all(self, x: Tensor, y: Tensor, seed: int, batch: Batch) -> dict[str, Tensor]:
        """The attacks of all radii under one evaluation seed."""
        found = RobustSet(
            self.evaluation.fast,
            y,
            random=self.random and not self.evaluation.exact,  # an exact mean needs no test
            points=1 + sum(len(entries) for entries in self.suites),
            error=ERROR,
            seed=seed,
            max_weight_samples=self.level.max_weight_samples,
            batch_size=self.evaluation.batch_size,
        )
        clean = self._lead(x, y, seed)
        found.test(x[None], clean[None])
        right, robust, inconclusive = [], [], []
        for radius, _ in enumerate(self.suites):
            right.append(self._attack(radius, x, y, seed, batch, found))
            robust.append(found.robust.clone())
            inconclusive.append(found.inconclusive.clone())
        last = clean
        if self.sanity_attack is not None:
            last = self._lead(self._craft("sanity attack", self.sanity_attack, x, y, seed, batch), y, seed)
        return {
            "clean": (clean > 0).to(torch.int8),
            "right": torch.cat(right, 1),
            "large_eps": last > 0,
            "correct": torch.stack(robust, 1),
            "inconclusive": torch.stack(inconclusive, 1),
            "weight_samples": found.weight_samples,
        }

    def _attack(self, radius: int, x: Tensor, y: Tensor, seed: int, batch: Batch, found: RobustSet) -> Tensor:
        """The images that are correct under each attack of a radius: 1 or 0, -1 if not attacked, [n, entries]."""
        entries = self.suites[radius]
        right = torch.full((len(x), len(entries)), -1, dtype=torch.int8, device=x.device)

        def run(number: int, rows: Tensor) -> tuple[Tensor, Tensor]:
            place = f"radius {radius + 1} of {len(self.suites)}, attack {number + 1} of {len(entries)}"
            entry = entries[number]
            points = self._craft(f"{place}: {entry.name}", entry.attack, x[rows], y[rows], seed, batch)
            leads = self._lead(points, y[rows], seed)
            right[rows, number] = (leads > 0).to(right.dtype)
            return points, leads

        everyone = torch.arange(len(x), device=x.device)
        runs = [run(number, everyone) for number, entry in enumerate(entries) if entry.on == ALL]
        points, leads = (torch.stack(parts) for parts in zip(*runs, strict=True))
        found.test(points, leads)
        for number, entry in enumerate(entries):
            rows = found.robust.nonzero().squeeze(1)
            if entry.on == SURVIVORS and len(rows):
                points, leads = run(number, rows)
                found.test(points[None], leads[None], rows)
        return right

    def _craft(self, name: str, attack: Perturbation, x: Tensor, y: Tensor, seed: int, batch: Batch) -> Tensor:
        """The points of an attack, stored in case the audit is interrupted before the batch is done."""
        make = functools.partial(self.evaluation.craft, attack, x, y, seed, batch)
        return batch.part(f"seed {seed}, {name}", x, make)

    def _lead(self, x: Tensor, y: Tensor, seed: int) -> Tensor:
        """By how much the label's mean probability leads all others, [n]."""
        return -margin(self.evaluation.classify(x, seed).probs, y)

    def _details(self, results: dict[str, Tensor]) -> list[dict[str, Any]]:
        """For each radius the single attacks, the statistics of the sequential test, and the flags."""
        parts = results["right"].split([len(entries) for entries in self.suites], 1)
        return [self._details_at(radius, results, right) for radius, right in enumerate(parts)]

    def _details_at(self, radius: int, results: dict[str, Tensor], right: Tensor) -> dict[str, Any]:
        entries, inconclusive = self.suites[radius], results["inconclusive"][:, radius]
        attacks = [{"name": CLEAN, "role": CLEAN, "on": ALL, "attack": None, **_counts(results["clean"])}]
        for entry, outcomes in zip(entries, right.unbind(1), strict=True):
            about = {"name": entry.name, "role": entry.role, "on": entry.on, "attack": attack_settings(entry.attack)}
            attacks.append({**about, **_counts(outcomes)})
        findings = Findings(
            entries=entries,
            right=torch.where((right >= 0).all(-1), right.double().mean(-1), math.nan),
            not_broken=(results["correct"][:, radius] | inconclusive).double().mean(-1),
            large_eps=None if self.sanity_attack is None else results["large_eps"].double().mean(-1),
            probes=results,
            random=self.random,
            probabilities=self.model.returns_probabilities,
        )
        return {
            "attacks": attacks,
            "inconclusive": inconclusive.sum(0).tolist(),
            "error": ERROR,
            "max_weight_samples": self.level.max_weight_samples,
            "mean_weight_samples": results["weight_samples"].double().mean().item(),
            "random": self.random,
            "flags": [asdict(flag) for flag in all_flags(findings)],
        }


def _counts(right: Tensor) -> dict[str, Any]:
    """How many images were attacked under each seed, and how many of these are correct."""
    return {"n": (right >= 0).sum(0).tolist(), "correct": (right == 1).sum(0).tolist()}


def _radius_to_grey(threat: Threat, pixels: int) -> Threat | None:
    """The radius at which every image can be made plain grey, or the radius of the threat if that is larger."""
    half = (threat.bounds[1] - threat.bounds[0]) / 2
    if not math.isfinite(half):
        return None
    return replace(threat, eps=max(threat.eps, half * threat.eps / even_change(threat, pixels)))
