"""Wording shared by errors about names: what came, what exists, what was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(argument: str, value: object, options: Iterable[str]) -> ValueError:
    """The error for a name that does not exist, with the nearest one that does."""
    known = sorted(options)
    expected = ", ".join(map(repr, known))
    return ValueError(f"{argument}={value!r} is unknown: expected one of {expected}{did_you_mean(value, known)}")


def did_you_mean(value: object, options: Iterable[str]) -> str:
    """The end of a message that suggests the nearest of the names; empty where none is near."""
    near = get_close_matches(str(value), sorted(options), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
