"""Whether an accuracy is that of guessing."""

from collections.abc import Sequence

import torch
from torch import Tensor

HELPS = (
    "check the labels; train longer (schedule.epochs); for a few hundred images use the recipe like = 'images'; lower "
    "objective.alpha, attack.threat.eps or optimizer.lr; let the radius grow (radius_warmup); start from weights "
    "trained without an attack (init)"
)
"""What usually helps a network that does not learn."""


def chance_level(targets: Tensor, rows: Sequence[int] | Tensor | None = None) -> float | None:
    """The accuracy of always naming the most frequent class; None for regression."""
    if targets.is_floating_point():
        return None
    chosen = targets if rows is None else targets[torch.as_tensor(rows, device=targets.device)]
    return float(chosen.bincount().max()) / len(chosen)


def is_near_chance(accuracy: float, chance: float) -> bool:
    """Whether less than 15 % of the way from chance to 100 % is made, and less than three times chance is reached.

    The second rule is for many classes: 10 % of 143 classes is little, but learned.
    """
    return accuracy < min(chance + 0.15 * (1 - chance), 3 * chance)


def chance_note(accuracy: float, chance: float | None, what: str) -> str | None:
    """A warning for an accuracy near chance, with what usually helps; None otherwise."""
    if chance is None or not is_near_chance(accuracy, chance):
        return None
    return (
        f"Near chance: {what} is {100 * accuracy:.1f} %, and always naming the most frequent class gives "
        f"{100 * chance:.1f} %. The network has learned little, so its robustness means nothing. What usually helps: "
        f"{HELPS}."
    )
