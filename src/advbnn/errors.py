"""The errors of the library. A message names the argument, what was expected, what was given, and the remedy.

Every error that a user can correct is an `AdvbnnError`, and the command line catches nothing else. Each is also the
built-in error that a Python caller expects.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from operator import index
from pathlib import Path
from typing import Any


class AdvbnnError(Exception):
    """An error that a user of the library can correct; the message says how."""


class ArgumentError(AdvbnnError, ValueError):
    """An argument with an unusable value."""


class ArgumentTypeError(AdvbnnError, TypeError):
    """An argument of an unusable type."""


class InputError(ArgumentError):
    """Inputs without the shape or dtype that the model takes."""


class ConfigError(ArgumentError):
    """An unusable setting; the message names its key."""


class DataError(ArgumentError):
    """An unusable dataset; the message names the file, the problem and the remedy."""


class FileError(AdvbnnError, OSError):
    """A file that cannot be read or written; the message names it and the remedy."""


class RunError(AdvbnnError, RuntimeError):
    """A run folder that cannot be used as requested; the message says what is possible."""


class CheckpointError(AdvbnnError, RuntimeError):
    """An unusable checkpoint; the message names the file and the reason."""


class DivergedError(AdvbnnError, RuntimeError):
    """Training diverged: the loss is no longer finite."""


class UnsupportedError(AdvbnnError):
    """A fast form does not apply; the message says why, and a slower form is used instead."""


class MissingPackageError(AdvbnnError, ImportError):
    """An optional package is not installed; the message says how to install it."""


def unknown(argument: str, value: object, options: Iterable[str]) -> ArgumentError:
    """The error for an unknown name, with the names that exist and the closest of them."""
    known = sorted(options)
    expected = ", ".join(map(repr, known))
    return ArgumentError(f"{argument}={value!r} is unknown: expected one of {expected}{did_you_mean(value, known)}")


def did_you_mean(value: object, options: Iterable[str]) -> str:
    """The end of a message that suggests the closest name; empty if none is close."""
    near = get_close_matches(str(value), sorted(options), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def data_error(path: Path | str, problem: str, remedy: str) -> DataError:
    """The error about one file or folder of a dataset."""
    return DataError(f"{path}: {problem}; {remedy}")


def positive_whole(argument: str, value: Any) -> int:
    """`value` as an int of at least 1, also from integers of numpy and torch; True and False are refused."""
    is_bool = isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")
    try:
        number = 0 if is_bool else index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ArgumentError(f"{argument} must be a positive whole number, got {value!r}")
    return number
