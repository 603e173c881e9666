"""The errors of the library, and how they are worded: the argument, what was expected, what came, the remedy.

Every error that a user can put right is an `AdvbnnError`; the command line catches that and nothing else. Each is also
the built-in error that a Python caller would expect.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from operator import index
from pathlib import Path
from typing import Any


class AdvbnnError(Exception):
    """Anything that a user of the library can put right; the message says how."""


class ArgumentError(AdvbnnError, ValueError):
    """An argument with a value that cannot be used."""


class ArgumentTypeError(AdvbnnError, TypeError):
    """An argument of a type that cannot be used."""


class InputError(ArgumentError):
    """Inputs that are not of the shape or dtype that the network takes."""


class ConfigError(ArgumentError):
    """A setting that cannot be used; the message names its key."""


class DataError(ArgumentError):
    """A dataset that cannot be used as it is; the message names the file, the problem and the remedy."""


class RunError(AdvbnnError, RuntimeError):
    """A run folder that cannot be used as asked; the message says what can be done."""


class CheckpointError(AdvbnnError, RuntimeError):
    """A checkpoint that cannot be used; the message names the file and the reason."""


class DivergedError(AdvbnnError, RuntimeError):
    """Training diverged: the loss is no longer finite."""


class UnsupportedError(AdvbnnError):
    """A fast form does not apply; the message says why, and a slower form takes its place."""


class MissingPackageError(AdvbnnError, ImportError):
    """An optional package is not installed; the message says how to install it."""


def unknown(argument: str, value: object, options: Iterable[str]) -> ArgumentError:
    """The error for a name that does not exist, with the nearest one that does."""
    known = sorted(options)
    expected = ", ".join(map(repr, known))
    return ArgumentError(f"{argument}={value!r} is unknown: expected one of {expected}{did_you_mean(value, known)}")


def did_you_mean(value: object, options: Iterable[str]) -> str:
    """The end of a message that suggests the nearest of the names; empty where none is near."""
    near = get_close_matches(str(value), sorted(options), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def data_error(path: Path | str, problem: str, remedy: str) -> DataError:
    """The error about one file or folder, always worded in the same order."""
    return DataError(f"{path}: {problem}; {remedy}")


def positive_whole(argument: str, value: Any) -> int:
    """`value` as an int of at least 1, also from numpy's and torch's integers; True and False are refused."""
    is_bool = isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")
    try:
        number = 0 if is_bool else index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ArgumentError(f"{argument} must be a positive whole number, got {value!r}")
    return number
