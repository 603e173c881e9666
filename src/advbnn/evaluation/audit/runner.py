"""The work of an audit: attack and probe batch by batch, score the worst points, and raise flags at each radius."""

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.attacks import PGD, FixedRandomness, GradientMaskingWarning
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import prediction_of, sampled_log_probs
from advbnn.bayes.protocol import members
from advbnn.data.chance import chance_level
from advbnn.evaluation.accuracy import CLEAN, Evaluation, Options, Perturbation, SmallSampleWarning, attack_settings
from advbnn.evaluation.attackable import Attackable, attackable
from advbnn.evaluation.audit.attack_suite import ALL, Level, attack_suite, even_change
from advbnn.evaluation.audit.consistency import answers, changed_since
from advbnn.evaluation.audit.estimate import audit_passes, pass_seconds
from advbnn.evaluation.audit.flags import Findings, all_flags
from advbnn.evaluation.audit.history import look_back
from advbnn.evaluation.audit.probes import probe
from advbnn.evaluation.audit.sequential_test import BOUNDED, CertainSet
from advbnn.evaluation.audit.worst_points import SURVIVES, WorstPoints, chance_correct
from advbnn.evaluation.batchwise import Batch, gather
from advbnn.evaluation.intervals import clopper_pearson
from advbnn.evaluation.points import WORST
from advbnn.evaluation.records import Plan, Records
from advbnn.machine.processes import world
from advbnn.modules import evaluating
from advbnn.randomness import derive_seed, is_random

ERROR = 0.01
"""The probability, for each image, that the test of the infinite ensemble decides wrongly."""

_FEWEST_SAMPLES = 20
"""Weight samples that compare all points at least, however few the classifier has."""

_MOST_GIVEN = 200
"""Weight samples of a score that the test of the infinite ensemble begins with, about: all would need much memory."""

_MOST_ENSEMBLES = 200
"""Ensembles that score a point at most; a record holds the accuracy of each."""

KNOWN_SEED = "known_seed"
"""The detail with the images, counted for each seed, that are correct if the attacker knows the ensemble's seed."""

CHANCE = "chance"
"""The detail with the accuracy of always naming the most frequent class."""

CERTAIN, INCONCLUSIVE = "certain", "inconclusive"
"""The details with the images, counted for each seed, that are certain and inconclusive for the infinite ensemble."""

_POINTS = "points"

_LEFT_OUT = -2.0
"""A survivor that an attack on a sample of them did not try first, in place of what it lowers the chance by."""


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
        model.known_random = random = self.history.random
        if model.mean is not None:
            with evaluating(model.mean):
                model.mean.known_random = is_random(model.mean, x[:2])
        pixels = x[0].numel()
        self.model, self.level, self.random, self._save = model, level, random, save
        # the mean over a finite support is exact: a deterministic classifier, though attacks sample the network
        self.sampled = random and not evaluation.exact
        self.tested = not self.sampled or evaluation.rule in BOUNDED
        more = max(1, 20 // evaluation.samples)  # a small ensemble varies more, and costs less
        self.knows_seed = self.sampled and level.known_seed_steps > 0
        self.ensembles = min(level.ensembles * more, _MOST_ENSEMBLES) if self.sampled else 1
        self.members = members(evaluation.model) if self.sampled else ()
        if self.members:
            self.ensembles = _MOST_ENSEMBLES
        suite = functools.partial(
            attack_suite,
            model=model,
            classes=len(evaluation.data.classes),
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
            self.evaluation = Evaluation(
                model, evaluation.data, **options | {"samples": evaluation.samples if random else 1}
            )

    def run(self, plans: Sequence[Plan]) -> Records:
        """The records of the worst case, one for each radius."""
        return self.evaluation.measure(plans, self._attack_batch, self._details, keeps="points" if self._save else "")

    def estimated_seconds(self) -> float:
        """Roughly how long it takes, for all processes together."""
        threat, n = self.suites[0][0].attack.threat, self.evaluation.plan.n
        samples = self.evaluation.samples
        counted = audit_passes(self.suites, self.level, samples, self.ensembles, self.random)
        with warnings.catch_warnings(), self.evaluation.explain_input_errors():
            warnings.simplefilter("ignore", GradientMaskingWarning)
            seconds = pass_seconds(self.evaluation, threat)
        return n * len(self.evaluation.seed_list) * (counted[0] * seconds[0] + counted[1] * seconds[1])

    def _attack_batch(self, x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        """All results of one batch."""
        threat, seeds = self.suites[0][0].attack.threat, self.evaluation.seed_list
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradientMaskingWarning)  # the flags report it
            seed = derive_seed(seeds[0], "probe", batch.number)
            earlier = answers(self.model, x, seed)
            by_seed = [self._attack_all(x, y, seed, batch) for seed in seeds]
            revived = torch.stack([one.pop("revived") for one in by_seed]).any(0)
            probes = probe(self.model, x, y, threat, self.evaluation.samples, seed, self.random)
            probes |= {"later": changed_since(earlier, self.model, x, seed), "revived": revived}
        stacked = {
            name: torch.stack([one[name] for one in by_seed], min(2, first.ndim))  # ensembles come after seeds
            for name, first in by_seed[0].items()
        }
        return {**probes, **stacked}

    def _attack_all(self, x: Tensor, y: Tensor, seed: int, batch: Batch) -> dict[str, Tensor]:
        """The attacks of all radii under one evaluation seed; what they find is carried over to the larger balls."""
        worst = WorstPoints(x)
        sure = CertainSet(
            self.evaluation.fast,
            y,
            rule=self.evaluation.rule,
            points=len(self.suites),
            error=ERROR,
            seed=seed,
            max_weight_samples=self.level.max_weight_samples,
            batch_size=self.evaluation.batch_size,
        )
        clean = self._offer(x, y, torch.arange(len(x), device=x.device), seed, worst)
        kept: list[Tensor] = []  # the points of every attack, and the worst ones, of one radius after the other
        of_radii: list[dict[str, Tensor]] = []
        chosen, revived = torch.full_like(x, math.nan), torch.zeros_like(y, dtype=torch.bool)
        correct, known_seed = torch.empty(0), clean > 0
        for radius, _ in enumerate(self.suites):
            right, turns = self._attack(radius, x, y, seed, batch, worst, kept)
            known_seed = self._know_seed(radius, x, y, seed, batch, known_seed & (right != 0).all(1))
            before, chosen = chosen, worst.choose(functools.partial(self._compare, y, seed))
            kept += [chosen] if self._save else []
            new = (chosen != before).flatten(1).any(1)
            rows = new.nonzero().squeeze(1)
            # the ensembles are the same at every radius, and so is what they say of a point that is not new
            scored, log_probs = self._score(chosen[rows], y[rows], seed) if len(rows) else (correct[:0], None)
            correct = correct.index_copy(0, rows, scored) if of_radii else scored
            revived |= (worst.lowest < SURVIVES) & (correct.double().mean(1) > 1 - SURVIVES)
            if self.sampled and self.tested:
                sure.test(chosen, new, log_probs)
            certain = sure.certain.clone() if self.sampled else correct[:, 0]
            found = {"right": right, "turns": turns, "correct": correct, KNOWN_SEED: known_seed}
            of_radii.append({**found, CERTAIN: certain, INCONCLUSIVE: sure.inconclusive.clone()})
        large_eps = clean > 0
        if self.sanity_attack is not None:
            points = self._craft("sanity attack", self.sanity_attack, x, y, seed, batch)
            large_eps = self.evaluation.classify(points, seed).label == y
        of_attacks = ("right", "turns")  # which have a column for each attack of a radius
        return {
            **{
                name: (torch.cat if name in of_attacks else torch.stack)([one[name] for one in of_radii], 1)
                for name in of_radii[0]
            },
            "clean": clean,
            "large_eps": large_eps,
            "weight_samples": sure.weight_samples,
            "revived": revived,
            **({_POINTS: torch.stack(kept, 1)} if self._save else {}),
        }

    def _attack(
        self, radius: int, x: Tensor, y: Tensor, seed: int, batch: Batch, worst: WorstPoints, kept: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The images that are correct under each attack of a radius: 1 or 0, -1 if not attacked, [n, entries].

        And by how much an attack lowers the chance of the survivors that it tries first, if not all at once: see
        `_LEFT_OUT`. The points are added to `kept` if they are to be saved, with the clean image where an attack did
        not run.
        """
        entries = self.suites[radius]
        right = torch.full((len(x), len(entries)), -1, dtype=torch.int8, device=x.device)
        turns, everyone = torch.full_like(right, math.nan, dtype=torch.float64), torch.arange(len(x), device=x.device)
        for number, entry in enumerate(entries):
            rows = everyone if entry.on == ALL else worst.surviving
            found, place = x, f"radius {radius + 1} of {len(self.suites)}, attack {number + 1} of {len(entries)}"
            first, others = entry.sample(rows, len(x), derive_seed(seed, "first", batch.number))
            before = (worst.lowest, worst.most_dangerous) if len(others) else None
            for part in (first, others):
                if not len(part):
                    break
                points = self._craft(f"{place}: {entry.name}", entry.attack, x[part], y[part], seed, batch)
                right[part, number] = self._offer(points, y[part], part, seed, worst)
                found = found.index_copy(0, part, points) if self._save else x
                if before is not None and part is first:
                    turns[others, number] = _LEFT_OUT
                    turns[first, number] = self._lowered(before, points, y, first, seed, worst)
                if not turns[first, number].sum() >= 1:  # NaN if there are no others
                    break
            kept += [found] if self._save else []
        return right, turns

    def _know_seed(self, radius: int, x: Tensor, y: Tensor, seed: int, batch: Batch, right: Tensor) -> Tensor:
        """The images, of those that all attacks leave `right`, that an attacker who knows the ensemble leaves too."""
        rows = right.nonzero().squeeze(1)
        if not self.knows_seed or not len(rows):
            return right
        attack = FixedRandomness(self.suites[radius][0].attack.threat, steps=self.level.known_seed_steps)
        name = f"radius {radius + 1} of {len(self.suites)}: fixed randomness"
        points = self._craft(name, attack, x[rows], y[rows], seed, batch)
        return right.index_copy(0, rows, self.evaluation.classify(points, seed).label == y[rows])

    def _offer(self, points: Tensor, y: Tensor, rows: Tensor, seed: int, worst: WorstPoints) -> Tensor:
        """Whether the ensemble of the seed is correct at points of the images `rows`, 1 or 0.

        Its weight samples, or a few more, also decide which points may be the worst. These are scored on others.
        """
        size, rule = self.evaluation.samples, self.evaluation.rule
        if not self.sampled:
            right = self.evaluation.classify(points, seed).label == y
            worst.offer(points, right.double(), rows)
            return right.to(torch.int8)
        log_probs = self.evaluation.log_probs(points, seed, max(size, _FEWEST_SAMPLES))
        worst.offer(points, chance_correct(log_probs, y, size, rule), rows)
        return (prediction_of(log_probs[:size], rule).label == y).to(torch.int8)

    def _compare(self, y: Tensor, seed: int, points: Tensor, rows: Tensor) -> Tensor:
        """The chance that an ensemble is correct at points of the images `rows`, by weight samples for this alone."""
        log_probs = self.evaluation.log_probs(points, derive_seed(seed, "compare"), self.level.comparison_samples)
        return chance_correct(log_probs, y[rows], self.evaluation.samples, self.evaluation.rule)

    def _lowered(
        self, before: tuple[Tensor, Tensor], points: Tensor, y: Tensor, rows: Tensor, seed: int, worst: WorstPoints
    ) -> Tensor:
        """By how much new points of the images `rows` lower the chance to be correct at the most dangerous ones.

        Of a random network by weight samples that chose neither, where the new point seems to be more dangerous.
        """
        chance, dangerous = before
        lowered = chance[rows] - worst.lowest[rows]
        if not self.sampled:
            return lowered
        seems = (lowered > 0).nonzero().squeeze(1)
        lowered = torch.zeros_like(lowered)
        if len(seems):
            both = torch.cat([dangerous[rows[seems]], points[seems]])
            old, new = self._compare(y, seed, both, rows[seems].repeat(2)).chunk(2)
            lowered[seems] = old - new
        return lowered

    def _score(self, points: Tensor, y: Tensor, seed: int) -> tuple[Tensor, Tensor | None]:
        """Whether each of R ensembles, of weight samples that nothing was chosen by, is correct, [n, R].

        And the log probabilities of some of these samples, for the test of the infinite ensemble. The samples of a
        posterior with finite support are picked from its members, which run once.
        """
        if self.members:
            nets = [Attackable(one.net, self.model.returns_probabilities) for one in self.members]
            log_probs = torch.cat([sampled_log_probs(net, points, 1, seed) for net in nets])
            weights, generator = torch.tensor([one.weight for one in self.members]), torch.Generator()
            generator.manual_seed(derive_seed(seed, "headline"))
            picks = weights.multinomial(self.ensembles * self.evaluation.samples, True, generator=generator)
            ensembles = [log_probs[picked] for picked in picks.view(self.ensembles, -1)]
            return torch.stack([prediction_of(one, self.evaluation.rule).label == y for one in ensembles], 1), None
        seeds = [derive_seed(seed, "headline", number) for number in range(self.ensembles)]
        if not self.sampled:
            return torch.stack([self.evaluation.classify(points, one).label == y for one in seeds], 1), None
        right, kept = [], []
        for number, one in enumerate(seeds):
            log_probs = self.evaluation.log_probs(points, one)
            right.append(prediction_of(log_probs, self.evaluation.rule).label == y)
            if number * len(log_probs) < _MOST_GIVEN:
                kept.append(log_probs)
        return torch.stack(right, 1), torch.cat(kept)

    def _craft(self, name: str, attack: Perturbation, x: Tensor, y: Tensor, seed: int, batch: Batch) -> Tensor:
        """The points of an attack, stored in case the audit is interrupted before the batch is done."""
        make = functools.partial(self.evaluation.craft, attack, x, y, seed, batch)
        return batch.part(f"seed {seed}, {name}", x, make)

    def _details(self, results: dict[str, Tensor]) -> list[dict[str, Any]]:
        """For each radius the single attacks, what is certain of the infinite ensemble, and the flags."""
        if self._save is not None and world().leads:
            self._save(self._named(results[_POINTS]))
        of_radii = (results[name].split([len(entries) for entries in self.suites], 1) for name in ("right", "turns"))
        return [self._details_at(radius, results, *of) for radius, of in enumerate(zip(*of_radii, strict=True))]

    def _named(self, points: Tensor) -> list[dict[str, Tensor]]:
        """The points, [n, attacks of all radii, seeds, ...], by name for each radius."""
        names = [[*_different([f"attack/{entry.name}" for entry in entries]), WORST] for entries in self.suites]
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
        entries = self.suites[radius]
        attacks = [{"name": CLEAN, "role": CLEAN, "on": ALL, "attack": None, **_counts(results["clean"])}]
        for entry, outcomes, turn in zip(entries, right.unbind(1), turns.unbind(1), strict=True):
            about = {"name": entry.name, "role": entry.role, "on": entry.on, "attack": attack_settings(entry.attack)}
            attacks.append({**about, **_counts(outcomes), **_sampled(outcomes, turn)})
        findings = Findings(
            entries=entries,
            right=torch.where((right >= 0).all(-1), right.double().mean(-1), math.nan),
            worst=results["correct"][:, radius].double().mean((1, 2)),
            large_eps=None if self.sanity_attack is None else results["large_eps"].double().mean(-1),
            probes=results,
            random=self.random,
            probabilities=self.model.returns_probabilities,
            history=self.history,
        )
        return {
            "attacks": attacks,
            **{name: results[name][:, radius].sum(0).tolist() for name in (CERTAIN, INCONCLUSIVE) if self.tested},
            **({KNOWN_SEED: results[KNOWN_SEED][:, radius].sum(0).tolist()} if self.knows_seed else {}),
            CHANCE: chance_level(self.evaluation.data.targets, self.evaluation.rows),
            "error": ERROR,
            "max_weight_samples": self.level.max_weight_samples,
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
    left_out = ((turns == _LEFT_OUT) & (right < 0)).sum(0)
    if not left_out.any():
        return {}
    tried = turns.isfinite() & (turns != _LEFT_OUT)
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
