"""Frozen dataclasses as JSON objects, and back. An error names the field, what was expected, what came, the remedy.

The type of a field is its hint, and its range what `Annotated` adds to that: functions such as `errors.positive_whole`
that get the name of the field and its value, and refuse what is out of range.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from advbnn.errors import ArgumentError, did_you_mean, shown

T = TypeVar("T")

_UNIONS = (typing.Union, types.UnionType)
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """A dataclass whose fields are in their ranges, whether it was read or made."""

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self), include_extras=True).items():
            _refuse(hint, name, getattr(self, name))


def matching(pattern: str, expected: str) -> Callable[[str, str], None]:
    """A range of texts: those that match the pattern as a whole."""

    def refuse(name: str, value: str) -> None:
        if not re.fullmatch(pattern, value, re.DOTALL):
            raise ArgumentError(f"{name}: expected {expected}, got {shown(value)}")

    return refuse


def read(cls: type[T], table: Any, place: str = "") -> T:
    """An instance of a dataclass from a JSON object; fields without a default are required, others are refused."""
    if not isinstance(table, Mapping):
        raise ArgumentError(f"{place or 'an entry'}: expected an object, got {shown(table)}; see docs/leaderboard.md")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            known = ", ".join(fields)
            raise ArgumentError(f"{_join(place, key)}: no such field{did_you_mean(key, fields)}; there are: {known}")
    for name, field in fields.items():
        if name not in table and field.default is field.default_factory is dataclasses.MISSING:
            raise ArgumentError(f"{_join(place, name)}: expected a value, got none; add the field")
    hints = typing.get_type_hints(cls)
    values = {name: _value(hints[name], table[name], _join(place, name)) for name in fields if name in table}
    try:
        return cls(**values)
    except ArgumentError as error:
        raise ArgumentError(_join(place, str(error))) from None


def write(value: Any) -> Any:
    """A dataclass as JSON values; fields that hold their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if getattr(value, field.name) != _default(field)]
        return {field.name: write(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {name: write(inner) for name, inner in value.items()}
    return [write(inner) for inner in value] if isinstance(value, tuple | list) else value


def _refuse(hint: Any, name: str, value: Any) -> None:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        for option in arguments:
            if value is not None and option is not type(None):
                _refuse(option, name, value)
    elif origin is typing.Annotated:
        for refuse in hint.__metadata__:
            refuse(name, value)
    elif origin is tuple and arguments[-1] is not Ellipsis:
        for one, inner in zip(arguments, value, strict=True):
            _refuse(one, name, inner)


def _value(hint: Any, value: Any, place: str) -> Any:
    options = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    if value is None and type(None) in options:
        return None
    wanted = next(option for option in options if option is not type(None))
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if dataclasses.is_dataclass(wanted):
        return read(typing.cast(Any, wanted), value, place)
    if origin is tuple and isinstance(value, list):
        each = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(each) != len(value):
            raise ArgumentError(f"{place}: expected a list of {len(each)}, got {len(value)}: {shown(value)}")
        return tuple(
            _value(one, inner, f"{place}[{n}]") for n, (one, inner) in enumerate(zip(each, value, strict=True))
        )
    if origin is not None and origin is not tuple and isinstance(value, Mapping):
        return dict(value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(wanted, type) and isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
        return value
    expected = " or ".join(_WORDS.get(option, "a list" if origin is tuple else "an object") for option in options)
    raise ArgumentError(f"{place}: expected {expected}, got {shown(value)}; correct it")


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
