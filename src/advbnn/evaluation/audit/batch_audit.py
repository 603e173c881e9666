"""One batch of an audit: the attacks of all radii under one evaluation seed, and the score of the worst points."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from advbnn.attacks import PGD, FixedRandomness
from advbnn.bayes.prediction import prediction_of
from advbnn.bayes.protocol import Member
from advbnn.evaluation.accuracy import Evaluation
from advbnn.evaluation.audit.attack_suite import ALL, Level, SuiteEntry
from advbnn.evaluation.audit.sequential_test import CertainSet
from advbnn.evaluation.audit.worst_points import SURVIVES, WorstPoints, chance_correct
from advbnn.evaluation.batchwise import Batch
from advbnn.evaluation.checks import Perturbation
from advbnn.evaluation.finite_support import correct_ensembles
from advbnn.randomness import derive_seed

ERROR = 0.01
"""The probability, for each image, that the test of the infinite ensemble decides wrongly."""

KNOWN_SEED = "known_seed"
"""The detail with the images, counted for each seed, that are correct if the attacker knows the ensemble's seed."""

CERTAIN, INCONCLUSIVE = "certain", "inconclusive"
"""The details with the images, counted for each seed, that are certain and inconclusive for the infinite ensemble."""

POINTS = "points"
"""The result with the points of every attack and the worst ones, if they are kept."""

LEFT_OUT = -2.0
"""A survivor that an attack on a sample of them did not try first, in place of what it lowers the chance by."""

_FEWEST_SAMPLES = 20
"""Weight samples that compare all points at least, however few the classifier has."""

_MOST_GIVEN = 200
"""Weight samples of a score that the test of the infinite ensemble begins with, about: all would need much memory."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all batches of an audit share.

    Attributes:
        suites: the attacks of each radius, the smallest first.
        shares: about how much of the work under a seed each of them is.
        sampled: whether the classifier is a mean over weight samples: the network is random, and the mean not exact.
        tested: whether the rule of the classifier has a test of the infinite ensemble.
        members: the networks of a finite support, if the classifier picks some of them at random.
        ensembles: R, how many score the worst point of each image.
        sanity_attack: at a radius at which no classifier can be robust; None if there is no such radius.
        keeps_points: whether the points of every attack are among the results.
    """

    evaluation: Evaluation
    level: Level
    suites: Sequence[Sequence[SuiteEntry]]
    shares: Sequence[Sequence[float]]
    sampled: bool
    tested: bool
    members: tuple[Member, ...]
    ensembles: int
    sanity_attack: PGD | None
    keeps_points: bool

    @property
    def knows_seed(self) -> bool:
        """Whether an attacker who knows the random numbers of the ensemble is tried, too."""
        return self.sampled and self.level.known_seed_steps > 0


class BatchAudit:
    """A batch of images `x` with labels `y` under one evaluation seed.

    What attacks find is carried over to the larger balls: `worst` has the most dangerous points so far.
    """

    def __init__(self, setup: Setup, x: Tensor, y: Tensor, seed: int, batch: Batch) -> None:
        self.setup, self.x, self.y, self.seed, self.batch = setup, x, y, seed, batch
        self.evaluation, self.worst = setup.evaluation, WorstPoints(x)
        self._everyone = torch.arange(len(x), device=x.device)
        self._kept: list[Tensor] = []  # the points of every attack, and the worst ones, of one radius after the other

    def results(self) -> dict[str, Tensor]:
        """Tensors with one row per image; those of single attacks and of radii have a column for each."""
        setup, x, y = self.setup, self.x, self.y
        sure = CertainSet(
            self.evaluation.fast,
            y,
            rule=self.evaluation.rule,
            points=len(setup.suites),
            error=ERROR,
            seed=self.seed,
            max_weight_samples=setup.level.max_weight_samples,
            batch_size=self.evaluation.batch_size,
        )
        clean = self._offer(x, self._everyone)
        of_radii: list[dict[str, Tensor]] = []
        chosen, revived = torch.full_like(x, math.nan), torch.zeros_like(y, dtype=torch.bool)
        correct, known_seed = torch.empty(0), clean > 0
        for radius in range(len(setup.suites)):
            right, turns = self._attack(radius)
            known_seed = self._know_seed(radius, known_seed & (right != 0).all(1))
            before, chosen = chosen, self.worst.choose(self._compare)
            self._keep(chosen)
            new = (chosen != before).flatten(1).any(1)
            rows = new.nonzero().squeeze(1)
            # the ensembles are the same at every radius, and so is what they say of a point that is not new
            scored, log_probs = self._score(chosen[rows], y[rows]) if len(rows) else (correct[:0], None)
            correct = correct.index_copy(0, rows, scored) if of_radii else scored
            revived |= (self.worst.lowest < SURVIVES) & (correct.double().mean(1) > 1 - SURVIVES)
            if setup.sampled and setup.tested:
                sure.test(chosen, new, log_probs)
            certain = sure.certain.clone() if setup.sampled else correct[:, 0]
            found = {"right": right, "turns": turns, "correct": correct, KNOWN_SEED: known_seed}
            of_radii.append({**found, CERTAIN: certain, INCONCLUSIVE: sure.inconclusive.clone()})
        large_eps = clean > 0
        if setup.sanity_attack is not None:
            points = self._craft("sanity attack", setup.sanity_attack, self._everyone)
            large_eps = self.evaluation.classify(points, self.seed).label == y
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
            **({POINTS: torch.stack(self._kept, 1)} if setup.keeps_points else {}),
        }

    def _attack(self, radius: int) -> tuple[Tensor, Tensor]:
        """The images that are correct under each attack of a radius: 1 or 0, -1 if not attacked, [n, entries].

        And by how much an attack lowers the chance of the survivors that it tries first, if not all at once: see
        `LEFT_OUT`. Where an attack does not run, the clean image is kept as its point.
        """
        entries, n = self.setup.suites[radius], len(self.x)
        right = torch.full((n, len(entries)), -1, dtype=torch.int8, device=self.x.device)
        turns = torch.full_like(right, math.nan, dtype=torch.float64)
        for number, entry in enumerate(entries):
            rows = self._everyone if entry.on == ALL else self.worst.surviving
            place = f"radius {radius + 1} of {len(self.setup.suites)}, attack {number + 1} of {len(entries)}"
            first, others = entry.sample(rows, n, derive_seed(self.seed, "first", self.batch.number))
            before = (self.worst.lowest, self.worst.most_dangerous) if len(others) else None
            found, share = self.x, self.setup.shares[radius][number]
            for part in (first, others):
                if not len(part):
                    break
                points = self._craft(f"{place}: {entry.name}", entry.attack, part, share if part is first else 0.0)
                right[part, number] = self._offer(points, part)
                found = found.index_copy(0, part, points) if self.setup.keeps_points else found
                if before is not None and part is first:
                    turns[others, number] = LEFT_OUT
                    turns[first, number] = self._lowered(*before, points, first)
                if not turns[first, number].sum() >= 1:  # NaN if there are no others
                    break
            self._keep(found)
        return right, turns

    def _know_seed(self, radius: int, right: Tensor) -> Tensor:
        """The images, of those that all attacks leave `right`, that an attacker who knows the ensemble leaves too."""
        rows = right.nonzero().squeeze(1)
        if not self.setup.knows_seed or not len(rows):
            return right
        threat = self.setup.suites[radius][0].attack.threat
        attack = FixedRandomness(threat, steps=self.setup.level.known_seed_steps)
        points = self._craft(f"radius {radius + 1} of {len(self.setup.suites)}: fixed randomness", attack, rows)
        return right.index_copy(0, rows, self.evaluation.classify(points, self.seed).label == self.y[rows])

    def _craft(self, name: str, attack: Perturbation, rows: Tensor, share: float = 0.0) -> Tensor:
        """The points of an attack on the images `rows`, stored in case the audit is interrupted before the batch is
        done. It is about this share of the work under a seed."""
        x, y = self.x[rows], self.y[rows]
        make = functools.partial(self.evaluation.craft, attack, x, y, self.seed, self.batch)
        return self.batch.part(f"seed {self.seed}, {name}", x, make, share / len(self.evaluation.seed_list))

    def _keep(self, points: Tensor) -> None:
        if self.setup.keeps_points:
            self._kept.append(points)

    def _offer(self, points: Tensor, rows: Tensor) -> Tensor:
        """Whether the ensemble of the seed is correct at points of the images `rows`, 1 or 0.

        Its weight samples, or a few more, also decide which points may be the worst. These are scored on others.
        """
        y, size, rule = self.y[rows], self.evaluation.samples, self.evaluation.rule
        if not self.setup.sampled:
            right = self.evaluation.classify(points, self.seed).label == y
            self.worst.offer(points, right.double(), rows)
            return right.to(torch.int8)
        log_probs = self.evaluation.log_probs(points, self.seed, max(size, _FEWEST_SAMPLES))
        self.worst.offer(points, chance_correct(log_probs, y, size, rule), rows)
        return (prediction_of(log_probs[:size], rule).label == y).to(torch.int8)

    def _compare(self, points: Tensor, rows: Tensor) -> Tensor:
        """The chance that an ensemble is correct at points of the images `rows`, by weight samples for this alone."""
        seed, samples = derive_seed(self.seed, "compare"), self.setup.level.comparison_samples
        log_probs = self.evaluation.log_probs(points, seed, samples)
        return chance_correct(log_probs, self.y[rows], self.evaluation.samples, self.evaluation.rule)

    def _lowered(self, chance: Tensor, dangerous: Tensor, points: Tensor, rows: Tensor) -> Tensor:
        """By how much new points of the images `rows` lower the `chance` to be correct at the most dangerous ones.

        Of a random network by weight samples that chose neither, where the new point seems to be more dangerous.
        """
        lowered = chance[rows] - self.worst.lowest[rows]
        if not self.setup.sampled:
            return lowered
        seems = (lowered > 0).nonzero().squeeze(1)
        lowered = torch.zeros_like(lowered)
        if len(seems):
            both = torch.cat([dangerous[rows[seems]], points[seems]])
            old, new = self._compare(both, rows[seems].repeat(2)).chunk(2)
            lowered[seems] = old - new
        return lowered

    def _score(self, points: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """Whether each of R ensembles, of weight samples that nothing was chosen by, is correct, [n, R].

        And the log probabilities of some of these samples, for the test of the infinite ensemble. The samples of a
        posterior with finite support are picked from its members, which run once.
        """
        ensembles, members, rule = self.setup.ensembles, self.setup.members, self.evaluation.rule
        if members:
            seed, samples = derive_seed(self.seed, "headline"), self.evaluation.samples
            return correct_ensembles(members, points, y, ensembles, samples, rule, seed), None
        seeds = [derive_seed(self.seed, "headline", number) for number in range(ensembles)]
        if not self.setup.sampled:
            return torch.stack([self.evaluation.classify(points, one).label == y for one in seeds], 1), None
        right, given = [], []
        for number, one in enumerate(seeds):
            log_probs = self.evaluation.log_probs(points, one)
            right.append(prediction_of(log_probs, rule).label == y)
            if number * len(log_probs) < _MOST_GIVEN:
                given.append(log_probs)
        return torch.stack(right, 1), torch.cat(given)
