"""Wording shared by errors about names: what came, what exists, what was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(argument: str, value: object, options: Iterable[str]) -> ValueError:
    """The error for a name that does not exist, with the nearest one that does."""
    known = sorted(options)
    near = get_close_matches(str(value), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ValueError(f"{argument}={value!r} is unknown: expected one of {', '.join(map(repr, known))}{hint}")
