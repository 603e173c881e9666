"""The verdicts on claims, and the rules by which differences of numbers lead to them."""

import math
from collections.abc import Mapping, Sequence

REPRODUCED, PARTLY, NOT = "reproduced", "partly", "not reproduced"
INCONCLUSIVE, UNMEASURED = "inconclusive", "not measured"
VERDICTS = (REPRODUCED, PARTLY, NOT, INCONCLUSIVE, UNMEASURED)


def small_loss(lost: float, chance: float, little: float, much: float) -> str:
    """The verdict on the claim that a loss is small; inconclusive if its margin reaches from little to much."""
    if lost - chance <= little and lost + chance > much:
        return INCONCLUSIVE
    return REPRODUCED if lost <= little else PARTLY if lost <= much else NOT


def share(met: Sequence[bool], count: int | None = None) -> str:
    """Reproduced, partly or not by the clear cases; inconclusive if they agree but are fewer than `count`."""
    if any(met) and not all(met):
        return PARTLY
    if count is not None and len(met) < count:
        return INCONCLUSIVE
    return REPRODUCED if all(met) else NOT


def exceeds(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether a mean is larger than another by more than two standard errors."""
    return one["mean"] - other["mean"] > 2 * math.hypot(one["se"], other["se"])
