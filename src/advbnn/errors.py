"""The errors of the library. A message names the argument, what was expected, what was given, and the remedy.

Every error that a user can correct is an `AdvbnnError`, and the command line catches nothing else. Each is also the
built-in error that a Python caller expects.

Settings are checked here, too, with bounds: `positive_whole`, `within`, `one_of` and `check_types`.
"""

import functools
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from numbers import Real
from operator import index
from pathlib import Path
from typing import Any

MOST = 1_000_000
"""The largest count of steps, samples, epochs and the like: no machine finishes more."""

MOST_EXAMPLES = 1_000_000_000
"""The largest size of a batch or a dataset."""


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


class InUseError(RunError):
    """A file or folder that another process has locked; the message names the process."""


class CheckpointError(AdvbnnError, RuntimeError):
    """An unusable checkpoint; the message names the file and the reason."""


class DivergedError(AdvbnnError, RuntimeError):
    """Training diverged: the loss is no longer finite."""


class UnsupportedError(AdvbnnError):
    """A fast form does not apply; the message says why, and a slower form is used instead."""


class MissingPackageError(AdvbnnError, ImportError):
    """An optional package is not installed; the message says how to install it."""


@contextmanager
def explain_missing_package(message: str) -> Iterator[None]:
    """Within the block, an import that fails says what needs the package, and how to install it."""
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(message) from error


def unknown(argument: str, value: object, options: Iterable[str]) -> ArgumentError:
    """The error for an unknown name, with the names that exist and the closest of them."""
    known = sorted(options)
    expected = ", ".join(map(repr, known))
    hint = did_you_mean(value, known)
    return ArgumentError(f"{argument}={shown(value)} is unknown: expected one of {expected}{hint}")


def one_of(argument: str, value: object, options: Iterable[str]) -> None:
    """Refuse what is not one of the options."""
    if value not in list(options):  # a list takes what cannot be hashed, too
        raise unknown(argument, value, options)


def did_you_mean(value: object, options: Iterable[str]) -> str:
    """The end of a message that suggests the closest name; empty if none is close."""
    near = get_close_matches(str(value), sorted(options), n=1, cutoff=0.55)
    return f"; did you mean {near[0]!r}?" if near else ""


def first_few(names: Sequence[str]) -> str:
    """Up to five names for a message, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def data_error(path: Path | str, problem: str, remedy: str) -> DataError:
    """The error about one file or folder of a dataset."""
    return DataError(f"{path}: {problem}; {remedy}")


def positive_whole(argument: str, value: Any, most: int = MOST) -> int:
    """`value` as an int from 1 to `most`, also from integers of numpy and torch; True and False are refused."""
    return whole(argument, value, 1, most)


def whole(argument: str, value: Any, least: int, most: int = MOST) -> int:
    """`value` as an int from `least` to `most`, also from integers of numpy and torch; True and False are refused."""
    number = _as_int(value)
    if number is None or not least <= number <= most:
        kind = "a positive whole number" if least == 1 else f"a whole number of at least {least:,}"
        raise ArgumentError(f"{argument} must be {kind}, at most {most:,}, got {shown(value)}")
    return number


def within(argument: str, value: Any, interval: str, remedy: str = "") -> None:
    """Refuse what is not a number of the interval, such as `"(0, 1]"`, including NaN, True and False."""
    low, high = map(float, interval[1:-1].split(","))
    number: Any = float("nan") if isinstance(value, bool) or not isinstance(value, Real) else value
    above = low < number if interval[0] == "(" else low <= number
    below = number < high if interval[-1] == ")" else number <= high
    if not (above and below):
        end = f"; {remedy}" if remedy else ""
        raise ArgumentError(f"{argument} must be a number in {interval}, got {shown(value)}{end}")


def check_types(settings: Any) -> None:
    """Refuse flags that are not bool, names that are not text, and parts that are not of their class, of a dataclass.

    Numbers have bounds, which `whole` and `within` check; other types are left alone.
    """
    for name, options in _flags_names_and_parts(settings.__class__).items():
        value = getattr(settings, name)
        if not isinstance(value, options):
            expected = " or ".join(_WORDS.get(option, option.__name__) for option in options)
            raise ArgumentTypeError(f"{name} must be {expected}, got {shown(value)}")


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its class if there is none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def shown(value: object) -> str:
    """The value for a message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:90]}... ({len(text):,} characters)"


_WORDS: dict[Any, str] = {bool: "True or False", str: "text", types.NoneType: "None"}


@functools.cache
def _flags_names_and_parts(cls: type) -> dict[str, tuple[Any, ...]]:
    """The types of the fields that hold nothing else."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a class of the user's whose annotations cannot be resolved here
        return {}
    union = (typing.Union, types.UnionType)
    options = {
        field.name: typing.get_args(hint) if typing.get_origin(hint) in union else (hint,)
        for field in fields(cls)
        for hint in (hints[field.name],)
    }
    return {
        name: kinds for name, kinds in options.items() if all(kind in _WORDS or is_dataclass(kind) for kind in kinds)
    }


def _as_int(value: Any) -> int | None:
    """An integer of Python, numpy or torch; None for everything else, and for True and False."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool"):
        return None
    try:
        return index(value)
    except TypeError:
        return None
