"""How long work takes, in numbers and in words."""

from collections.abc import Iterable


def in_words(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def together(seconds: Iterable[float], workers: int) -> float:
    """The time of all tasks if the workers share them evenly and do not slow each other."""
    every = list(seconds)
    return max(sum(every) / workers, max(every, default=0.0))
