"""The work of an audit: attack and probe batch by batch, score the worst points, and raise flags at each radius."""

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.attacks import PGD, GradientMaskingWarning
from advbnn.attacks.threat import Threat
from advbnn.bayes.protocol import Member, finite_support
from advbnn.data.chance import chance_level
from advbnn.evaluation.accuracy import CLEAN, Evaluation, SmallSampleWarning, attack_settings
from advbnn.evaluation.attackable import Attackable, attackable
from advbnn.evaluation.audit.attack_suite import ALL, Level, attack_suite, even_change
from advbnn.evaluation.audit.batch_audit import (
    CERTAIN,
    ERROR,
    INCONCLUSIVE,
    KNOWN_SEED,
    LEFT_OUT,
    POINTS,
    BatchAudit,
    Setup,
)
from advbnn.evaluation.audit.consistency import changed_since, seeded_logits
from advbnn.evaluation.audit.estimate import audit_passes, pass_seconds, shares
from advbnn.evaluation.audit.flags import Findings, all_flags
from advbnn.evaluation.audit.history import look_back
from advbnn.evaluation.audit.probes import probe
from advbnn.evaluation.audit.sequential_test import BOUNDED
from advbnn.evaluation.batchwise import Batch, gather
from advbnn.evaluation.checks import Perturbation
from advbnn.evaluation.intervals import clopper_pearson
from advbnn.evaluation.options import Options
from advbnn.evaluation.points import WORST
from advbnn.evaluation.records import Plan, Records
from advbnn.machine.processes import world
from advbnn.modules import evaluating
from advbnn.randomness import derive_seed, draws_for_some, is_random

_MOST_ENSEMBLES = 200
"""Ensembles that score a point at most; a record holds the accuracy of each."""

CHANCE = "chance"
"""The detail with the accuracy of always naming the most frequent class."""


class AuditRunner:
    """Runs the attack suites of all radii, the smallest first; `transfer_from` and `given` as for `audit`.

    `save` gets the points of every attack and the worst ones: by name, for each radius; see `Points`.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        options: Options,
        threats: Sequence[Threat],
        level: Level,
        *,
        transfer_from: Mapping[str, nn.Module],
        given: Mapping[str, Perturbation],
        save: Callable[[list[dict[str, Tensor]]], None] | None = None,
    ) -> None:
        # a few images show whether the network is random and returns probabilities
        x, _ = evaluation.first(16)
        with evaluation.explain_input_errors():
            model = attackable(evaluation.model, x)
        # the first process decides, so that all run the same suite
        self.history = gather(look_back(model, x[:2], derive_seed(evaluation.seed_list[0], "history")))[0]
        with evaluating(model):
            some = draws_for_some(model, evaluation.first(evaluation.batch_size)[0])
        model.known_random = random = self.history.random or gather(some)[0]
        if model.mean is not None:
            with evaluating(model.mean):
                model.mean.known_random = is_random(model.mean, x[:2])
        pixels = x[0].numel()
        self.model, self.random, self._save = model, random, save
        # the mean over a finite support is exact: a deterministic classifier, though attacks sample the network
        sampled = random and not evaluation.exact
        nets = finite_support(evaluation.model, x[:2]) if sampled else ()
        support = tuple(Member(one.weight, Attackable(one.net, model.returns_probabilities)) for one in nets)
        more = max(1, 20 // evaluation.samples)  # a small ensemble varies more, and costs less
        ensembles = _MOST_ENSEMBLES if support else min(level.ensembles * more, _MOST_ENSEMBLES)
        suite = functools.partial(
            attack_suite,
            model=model,
            classes=len(evaluation.data.classes),
            pixels=pixels,
            random=random,
            samples=evaluation.samples,
            transfer_from=transfer_from,
            given=given,
        )
        eot, grey = level.eot[-1] if random else 1, _radius_to_grey(threats[-1], pixels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallSampleWarning)  # the first evaluation has warned
            self.evaluation = Evaluation(
                model, evaluation.data, **options | {"samples": evaluation.samples if random else 1}
            )
        suites = [suite(level, threat) for threat in threats]
        self._counted: dict[str, Any] = {"samples": self.evaluation.samples, "ensembles": ensembles, "random": random}
        self.setup = Setup(
            evaluation=self.evaluation,
            level=level,
            suites=suites,
            shares=shares(suites, level, **self._counted),
            sampled=sampled,
            tested=not sampled or evaluation.rule in BOUNDED,
            members=support,
            ensembles=ensembles if sampled else 1,
            sanity_attack=None if grey is None else PGD(grey, steps=level.steps[0], eot=eot),
            keeps_points=save is not None,
        )

    def run(self, plans: Sequence[Plan]) -> Records:
        """The records of the worst case, one for each radius."""
        return self.evaluation.measure(plans, self._attack_batch, self._details, keeps=POINTS if self._save else "")

    def estimated_seconds(self) -> float:
        """Roughly how long it takes, for all processes together."""
        threat, n = self.setup.suites[0][0].attack.threat, self.evaluation.plan.n
        counted = audit_passes(self.setup.suites, self.setup.level, **self._counted)
        with warnings.catch_warnings(), self.evaluation.explain_input_errors():
            warnings.simplefilter("ignore", GradientMaskingWarning)
            seconds = pass_seconds(self.evaluation, threat)
        return n * len(self.evaluation.seed_list) * (counted[0] * seconds[0] + counted[1] * seconds[1])

    def _attack_batch(self, x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        threat, seeds = self.setup.suites[0][0].attack.threat, self.evaluation.seed_list
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradientMaskingWarning)  # the flags report it
            seed = derive_seed(seeds[0], "probe", batch.number)
            earlier = seeded_logits(self.model, x, seed)
            by_seed = [BatchAudit(self.setup, x, y, seed, batch).results() for seed in seeds]
            revived = torch.stack([one.pop("revived") for one in by_seed]).any(0)
            probes = probe(self.model, x, y, threat, self.evaluation.samples, seed, self.random)
            probes |= {"later": changed_since(earlier, self.model, x, seed), "revived": revived}
        stacked = {
            name: torch.stack([one[name] for one in by_seed], min(2, first.ndim))  # ensembles come after seeds
            for name, first in by_seed[0].items()
        }
        return {**probes, **stacked}

    def _details(self, results: dict[str, Tensor]) -> list[dict[str, Any]]:
        """For each radius the single attacks, what is certain of the infinite ensemble, and the flags."""
        if self._save is not None and world().leads:
            self._save(self._named(results[POINTS]))
        of_radii = (
            results[name].split([len(entries) for entries in self.setup.suites], 1) for name in ("right", "turns")
        )
        return [self._details_at(radius, results, *of) for radius, of in enumerate(zip(*of_radii, strict=True))]

    def _named(self, points: Tensor) -> list[dict[str, Tensor]]:
        """The points, [n, attacks of all radii, seeds, ...], by name for each radius."""
        names = [[*_different([f"attack/{entry.name}" for entry in entries]), WORST] for entries in self.setup.suites]
        seeds = self.evaluation.seed_list
        return [
            {
                name if len(seeds) == 1 else f"{name} (seed {seed})": found
                for name, of_seeds in zip(of_radius, part.unbind(1), strict=True)
                for seed, found in zip(seeds, of_seeds.unbind(1), strict=True)
            }
            for of_radius, part in zip(names, points.split([len(n) for n in names], 1), strict=True)
        ]

    def _details_at(self, radius: int, results: dict[str, Tensor], right: Tensor, turns: Tensor) -> dict[str, Any]:
        entries = self.setup.suites[radius]
        attacks = [{"name": CLEAN, "role": CLEAN, "on": ALL, "attack": None, **_counts(results["clean"])}]
        for entry, outcomes, turn in zip(entries, right.unbind(1), turns.unbind(1), strict=True):
            about = {"name": entry.name, "role": entry.role, "on": entry.on, "attack": attack_settings(entry.attack)}
            attacks.append({**about, **_counts(outcomes), **_sampled(outcomes, turn)})
        findings = Findings(
            entries=entries,
            right=torch.where((right >= 0).all(-1), right.double().mean(-1), math.nan),
            worst=results["correct"][:, radius].double().mean((1, 2)),
            large_eps=None if self.setup.sanity_attack is None else results["large_eps"].double().mean(-1),
            probes=results,
            random=self.random,
            probabilities=self.model.returns_probabilities,
            history=self.history,
        )
        return {
            "attacks": attacks,
            **{name: results[name][:, radius].sum(0).tolist() for name in (CERTAIN, INCONCLUSIVE) if self.setup.tested},
            **({KNOWN_SEED: results[KNOWN_SEED][:, radius].sum(0).tolist()} if self.setup.knows_seed else {}),
            CHANCE: chance_level(self.evaluation.data.targets, self.evaluation.rows),
            "error": ERROR,
            "max_weight_samples": self.setup.level.max_weight_samples,
            "mean_weight_samples": results["weight_samples"].double().mean().item(),
            "random": self.random,
            "flags": [asdict(flag) for flag in all_flags(findings)],
        }


def _different(names: Sequence[str]) -> list[str]:
    """The names, with a number where one is repeated, as an attack of the user's may be called like one of ours."""
    return [f"{n} ({names[:i].count(n) + 1})" if n in names[:i] else n for i, n in enumerate(names)]


def _counts(right: Tensor) -> dict[str, Any]:
    """How many images were attacked under each seed, and how many of these are correct."""
    return {"n": (right >= 0).sum(0).tolist(), "correct": (right == 1).sum(0).tolist()}


def _sampled(right: Tensor, turns: Tensor) -> dict[str, Any]:
    """For an attack that tried only some survivors: how many there were, and what the sample says about the others.

    The chances of so many images, all together, it lowers by `first_lowered`: the number that it breaks, if the network
    is not random. `at_most` is the upper end, one-sided at 95 %, of the mean over the survivors. Empty if none was
    left out.
    """
    left_out = ((turns == LEFT_OUT) & (right < 0)).sum(0)
    if not left_out.any():
        return {}
    tried = turns.isfinite() & (turns != LEFT_OUT)
    first, lowered = tried.sum(0).tolist(), torch.where(tried, turns, 0.0).sum(0).clamp_min(0).tolist()
    # of all numbers between 0 and 1 with a given mean, zeros and ones vary most
    bounds = [clopper_pearson(math.ceil(k), n, 0.9)[1] if n else None for k, n in zip(lowered, first, strict=True)]
    return {"left_out": left_out.tolist(), "first": first, "first_lowered": lowered, "at_most": bounds}


def _radius_to_grey(threat: Threat, pixels: int) -> Threat | None:
    """The radius at which every image can be made plain grey, or the radius of the threat if that is larger."""
    half = (threat.bounds[1] - threat.bounds[0]) / 2
    if not math.isfinite(half):
        return None
    return replace(threat, eps=max(threat.eps, half * threat.eps / even_change(threat, pixels)))
