"""Counts as callers give them: Python's whole numbers, or those of numpy and torch."""

from operator import index
from typing import Any


def positive_whole(argument: str, value: Any) -> int:
    """`value` as an int of 1 or more; an error for all else, True and False included."""
    try:
        number = 0 if _is_truth_value(value) else index(value)
    except TypeError:  # no whole number
        number = 0
    if number < 1:
        raise ValueError(f"{argument} must be a positive whole number, got {value!r}")
    return number


def _is_truth_value(value: Any) -> bool:
    # those of numpy and torch, too, which know their type
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")
