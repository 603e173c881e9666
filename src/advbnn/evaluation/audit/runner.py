"""The work of an audit on one batch after another, and what is made of it in the end."""

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.attacks import PGD, GradientMaskingWarning
from advbnn.attacks.losses import margin
from advbnn.attacks.oracle import is_random
from advbnn.attacks.threat import Threat
from advbnn.data.augment import to_float
from advbnn.data.imageset import row_numbers
from advbnn.evaluation.accuracy import CLEAN, Evaluation, Perturbation, SmallSampleWarning
from advbnn.evaluation.attackable import Attackable, attackable
from advbnn.evaluation.audit.attack_flags import attack_flags
from advbnn.evaluation.audit.attack_suite import ALL, SURVIVORS, Level, SuiteEntry, attack_suite, even_change
from advbnn.evaluation.audit.flags import Findings
from advbnn.evaluation.audit.probe_flags import probe_flags
from advbnn.evaluation.audit.probes import probe
from advbnn.evaluation.audit.sequential_test import RobustSet
from advbnn.evaluation.batchwise import Batch
from advbnn.modules import evaluating
from advbnn.randomness import derive_seed

ERROR = 0.01
"""The chance, for each image, that the test which decides about it is wrong."""

_LOOKED_AT = 16
"""Images that tell what kind of network it is."""


@dataclass(frozen=True, kw_only=True)
class AuditRunner:
    """Attacks and probes a batch when called, and makes the details of records of what all batches have shown.

    Attributes:
        judge: asks the network, in a form that every attack can work with.
        level: how much is tried.
        suites: the attacks, by radius, the smallest first.
        sanity_attack: an attack at a radius that nothing can survive; None if there is none.
        random: whether the network is random.
    """

    judge: Evaluation
    level: Level
    suites: tuple[tuple[SuiteEntry, ...], ...]
    sanity_attack: PGD | None
    random: bool

    @classmethod
    def plan(
        cls,
        evaluation: Evaluation,
        threats: Sequence[Threat],
        level: Level,
        transfer_from: Mapping[str, nn.Module],
        given: Mapping[str, Perturbation],
    ) -> "AuditRunner":
        """What to do about the model of an evaluation, after a look at it."""
        x = _first_images(evaluation)
        with evaluation.explain_input_errors():
            model = attackable(evaluation.model, x)
        with evaluating(model):
            random = is_random(model, x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallSampleWarning)  # of which the evaluation has warned
            judge = replace(evaluation, model=model, samples=evaluation.samples if random else 1)
        suites = tuple(
            attack_suite(
                level,
                threat,
                model,
                classes=len(evaluation.data.classes),
                pixels=x[0].numel(),
                random=random,
                transfer_from=transfer_from,
                given={name: attack for name, attack in given.items() if attack.threat == threat},
            )
            for threat in threats
        )
        grey = _enough_for_grey(threats[-1], x[0].numel())
        sanity_attack = None if grey is None else PGD(grey, steps=level.steps[0], eot=level.draws[-1] if random else 1)
        return cls(judge=judge, level=level, suites=suites, sanity_attack=sanity_attack, random=random)

    @property
    def model(self) -> Attackable:
        """The network."""
        assert isinstance(self.judge.model, Attackable)
        return self.judge.model

    def __call__(self, x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        """All that can be said of the images of one batch."""
        x, y = self.judge.prepared(x, y)
        threat, seeds = self.suites[0][0].attack.threat, self.judge.seed_list
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradientMaskingWarning)  # that is what flags are for
            by_seed = [self._attack_all(x, y, seed, batch) for seed in seeds]
            found = probe(self.model, x, y, threat, self.judge.samples, derive_seed(seeds[0], "probe", batch.number))
        return {**found, **{name: torch.stack([of_one[name] for of_one in by_seed], -1) for name in by_seed[0]}}

    def details(self, results: dict[str, Tensor]) -> list[dict[str, Any]]:
        """For each radius the attacks one by one, how the worst case was decided, and the flags."""
        parts = results["right"].split([len(entries) for entries in self.suites], 1)
        return [self._details(results, number, right) for number, right in enumerate(parts)]

    def _attack_all(self, x: Tensor, y: Tensor, seed: int, batch: Batch) -> dict[str, Tensor]:
        standing = RobustSet(
            self.judge.fast,
            y,
            random=self.random,
            points=1 + sum(len(entries) for entries in self.suites),
            error=ERROR,
            seed=seed,
            most_draws=self.level.most_draws,
            batch_size=self.judge.batch_size,
        )
        clean = self._lead(x, y, seed)
        standing.test(x[None], clean[None])
        right, robust, undecided = [], [], []
        for radius in range(len(self.suites)):
            right.append(self._attack(radius, x, y, seed, batch, standing))
            robust.append(standing.robust.clone())
            undecided.append(standing.undecided.clone())
        last = clean
        if self.sanity_attack is not None:
            last = self._lead(self._craft("what nothing can survive", self.sanity_attack, x, y, seed, batch), y, seed)
        return {
            "clean": (clean > 0).to(torch.int8),
            "right": torch.cat(right, 1),
            "large_eps": last > 0,
            "correct": torch.stack(robust, 1),
            "undecided": torch.stack(undecided, 1),
            "draws": standing.draws,
        }

    def _attack(self, radius: int, x: Tensor, y: Tensor, seed: int, batch: Batch, standing: RobustSet) -> Tensor:
        """Which images each entry at a radius leaves right: 1 or 0, and -1 where it was not tried, [n, entries]."""
        entries = self.suites[radius]
        names = [
            f"radius {radius + 1} of {len(self.suites)}, attack {number + 1} of {len(entries)}: {entry.name}"
            for number, entry in enumerate(entries)
        ]
        right = torch.full((len(x), len(entries)), -1, dtype=torch.int8, device=x.device)
        points, leads = [], []
        for number, entry in enumerate(entries):
            if entry.on == ALL:
                points.append(self._craft(names[number], entry.attack, x, y, seed, batch))
                leads.append(self._lead(points[-1], y, seed))
                right[:, number] = leads[-1] > 0
        standing.test(torch.stack(points), torch.stack(leads))
        for number, entry in enumerate(entries):
            rows = standing.robust.nonzero().squeeze(1)
            if entry.on == SURVIVORS and len(rows):
                point = self._craft(names[number], entry.attack, x[rows], y[rows], seed, batch)
                lead = self._lead(point, y[rows], seed)
                right[rows, number] = (lead > 0).to(right.dtype)
                standing.test(point[None], lead[None], rows)
        return right

    def _craft(self, name: str, attack: Perturbation, x: Tensor, y: Tensor, seed: int, batch: Batch) -> Tensor:
        """The points of an attack, kept should the audit be interrupted before its batch is done."""
        make = functools.partial(self.judge.craft, attack, x, y, seed, batch)
        return batch.part(f"seed {seed}, {name}", x, make)

    def _lead(self, x: Tensor, y: Tensor, seed: int) -> Tensor:
        """By how much the label's mean probability leads all others, [n]."""
        return -margin(self.judge.classify(x, seed).probs, y)

    def _details(self, results: dict[str, Tensor], radius: int, right: Tensor) -> dict[str, Any]:
        entries, undecided = self.suites[radius], results["undecided"][:, radius]
        attacks = [{"name": CLEAN, "role": CLEAN, "on": ALL, "attack": "", **_counts(results["clean"])}]
        for entry, outcomes in zip(entries, right.unbind(1), strict=True):
            about = {"name": entry.name, "role": entry.role, "on": entry.on, "attack": repr(entry.attack)}
            attacks.append({**about, **_counts(outcomes)})
        findings = Findings(
            entries=entries,
            right=torch.where((right >= 0).all(-1), right.double().mean(-1), math.nan),
            standing=(results["correct"][:, radius] | undecided).double().mean(-1),
            large_eps=None if self.sanity_attack is None else results["large_eps"].double().mean(-1),
            probes=results,
            random=self.random,
            probabilities=self.model.returns_probabilities,
        )
        return {
            "attacks": attacks,
            "undecided": undecided.sum(0).tolist(),
            "error": ERROR,
            "most_draws": self.level.most_draws,
            "mean_draws": results["draws"].double().mean().item(),
            "random": self.random,
            "flags": [asdict(flag) for flag in (*attack_flags(findings), *probe_flags(findings))],
        }


def _counts(right: Tensor) -> dict[str, Any]:
    """How many images were tried under each seed, and how many of these are right."""
    return {"n": (right >= 0).sum(0).tolist(), "correct": (right == 1).sum(0).tolist()}


def _first_images(evaluation: Evaluation) -> Tensor:
    data = evaluation.data
    rows = torch.arange(len(data)) if evaluation.rows is None else row_numbers(evaluation.rows, len(data))
    stored, labels = next(iter(data.gather([rows[:_LOOKED_AT]])))
    return evaluation.prepared(to_float(stored), labels)[0]


def _enough_for_grey(threat: Threat, pixels: int) -> Threat | None:
    """The radius at which every image can be made plain grey, or a larger one that is asked about."""
    half = (threat.bounds[1] - threat.bounds[0]) / 2
    if not math.isfinite(half):
        return None
    return replace(threat, eps=max(threat.eps, half * threat.eps / even_change(threat, pixels)))
