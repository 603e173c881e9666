"""Flags: signs that a robust accuracy is too good to be true, and what counts as one.

A difference counts if it is beyond sampling error and large enough to matter. What is too small to tell raises nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from advbnn.evaluation.audit.attack_suite import ALL, SuiteEntry
from advbnn.evaluation.intervals import clopper_pearson

CHANCE = 0.001
"""How often, at most, chance alone makes one comparison count."""

SMALLEST = 0.05
"""The smallest difference of two accuracies that counts, however sure it is."""

TITLES = {
    "eot": "More averaging does not help the attack",
    "steps": "More steps do not help the attack",
    "restarts": "More starts do not help the attack",
    "large_eps": "Survives what nothing can survive",
    "black_box": "Attacks that do not use its gradients do better",
    "noise": "Random noise does as much as its gradients",
    "single_draw": "Robust against single draws only",
    "gradients": "Its gradients mislead",
    "cosine": "Gradients of its draws have nothing in common",
    "hidden_randomness": "Randomness that no seed controls",
    "discontinuity": "Invisible changes change the answer",
    "mode": "Another network in training mode",
    "batch": "Answers depend on the rest of the batch",
    "probabilities": "Returns probabilities",
}
"""What each flag says when it is raised."""


@dataclass(frozen=True)
class Flag:
    """One sign of trouble, found or not.

    Attributes:
        name: which sign; a key of `TITLES`.
        raised: whether it was found.
        evidence: what was seen, in words.
        numbers: what was seen, in numbers; None for what could not be measured.
    """

    name: str
    raised: bool
    evidence: str
    numbers: Mapping[str, float | None]

    @property
    def title(self) -> str:
        """The sign in a few words."""
        return TITLES[self.name]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What an audit has seen at one radius: for each image, [n], the share of evaluation seeds under which it is right.

    Attributes:
        entries: the attacks.
        right: under each attack, [n, entries]; NaN where it was not tried.
        standing: when the worst of all points is judged, what could not be decided included.
        large_eps: at a radius that nothing can survive; None if there is no such radius.
        probes: what `probe` has found.
        random: whether the network is random.
        probabilities: whether it returns probabilities.
    """

    entries: Sequence[SuiteEntry]
    right: Tensor
    standing: Tensor
    large_eps: Tensor | None
    probes: Mapping[str, Tensor]
    random: bool
    probabilities: bool

    def under(self, number: int) -> Tensor:
        """What the entry of this number leaves right."""
        return self.right[:, number]

    def strongest(self, *roles: str) -> int:
        """The number of the entry on all images that leaves least right, among those of the given roles."""
        numbers = [n for n, entry in enumerate(self.entries) if entry.role in roles and entry.on == ALL]
        return min(numbers, key=lambda number: share(self.under(number)))


def below(lower: Tensor, upper: Tensor) -> bool:
    """Whether `lower` is the lower of two accuracies on the same images, beyond chance and by enough to matter.

    If neither is, an image for which `upper` is higher is as likely as one for which `lower` is: the number of the
    former among both is binomial (the sign test; for a single seed, McNemar's exact test).

    Args:
        lower: for each image the share of seeds under which it is right, [n].
        upper: the same.
    """
    wins, losses = int((upper > lower).sum()), int((upper < lower).sum())
    return share(upper) - share(lower) >= SMALLEST and _heads(wins, wins + losses) <= CHANCE


def more_than(least: float, images: Tensor) -> bool:
    """Whether something that is true of some of the `images` is surely true of more than a share `least` of all."""
    return clopper_pearson(int(images.sum()), len(images), 1 - 2 * CHANCE)[0] > least


def share(right: Tensor) -> float:
    """The mean, such as an accuracy."""
    return right.double().mean().item()


def percent(right: Tensor) -> str:
    """The mean as a percentage, for sentences."""
    return f"{100 * share(right):.1f} %"


def _heads(least: int, throws: int) -> float:
    """The probability of so many heads or more."""
    return math.fsum(math.comb(throws, k) / 2**throws for k in range(least, throws + 1))
