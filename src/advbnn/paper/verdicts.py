"""When a claim counts as reproduced: by how much numbers differ, and how much of that may be chance."""

import math
from collections.abc import Mapping, Sequence

from advbnn.evaluation.intervals import paired_interval
from advbnn.paper import published as paper
from advbnn.paper.evidence import Number

REPRODUCED, PARTLY, NOT = "reproduced", "partly", "not reproduced"
UNDECIDED, UNMEASURED = "undecided", "not measured"

ENOUGH_GAIN = 0.75 * paper.GAIN
"""So much is about the gain that the paper has, in points."""

SMALL_LEAD = 2.0
"""A lead that is surely less, in points, is none."""

ENOUGH_IMAGES = 100
"""Fewer cannot show how alike two networks are: a share of them may be off by ten points and more."""

CLEARLY_FASTER = 0.9
"""The time of Adv-BNN over that of adversarial training below which the two were not timed alike."""


def of_difference(a: Number, b: Number) -> float:
    """What the difference of two numbers, in points, may owe to chance: how far its 95 % interval reaches towards 0.

    Of the same images, those that are right in one alone make the interval; that of trainings where it is longer. Of
    different images, or where records only count them, it is made of the ends that face each other (Newcombe). For the
    same images this is more than chance can do, as those that are easy once are easy again.
    """
    upper, lower = (a, b) if a.mean >= b.mean else (b, a)
    if upper.right is None or lower.right is None or upper.data != lower.data:
        return math.hypot(upper.below, lower.above)
    least = 100 * paired_interval(upper.right, lower.right)[0]
    return max(upper.mean - lower.mean - least, math.hypot(upper.by_training, lower.by_training))


def exceeds(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether a mean is larger than another by more than chance."""
    return one["mean"] - other["mean"] > 2 * math.hypot(one["se"], other["se"])


def small(lost: float, chance: float, little: float, much: float) -> str:
    """The verdict on the claim that a loss is small; undecided where chance reaches from little to more than much."""
    if lost - chance <= little and lost + chance > much:
        return UNDECIDED
    return REPRODUCED if lost <= little else PARTLY if lost <= much else NOT


def share(met: Sequence[bool], asked: int | None = None) -> str:
    """All, some or none; undecided if some of those `asked` are and the others agree; not measured without any."""
    if any(met) and not all(met):
        return PARTLY
    if asked is not None and len(met) < asked:
        return UNDECIDED
    return UNMEASURED if not met else REPRODUCED if all(met) else NOT
