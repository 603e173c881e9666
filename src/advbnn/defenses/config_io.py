"""Frozen dataclasses as nested tables of names and plain values, the way TOML writes them, and back.

A field that may be one of several dataclasses is a table whose `kind` is the class name in lower case; `"none"`
stands for None. Every error names the key by its full path, what was expected, and what came.
"""

import dataclasses
import math
import numbers
import re
import types
import typing
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, TypeVar

from advbnn.errors import ConfigError, unknown

T = TypeVar("T")

NONE = "none"
DERIVED = types.MappingProxyType({"derived": True})
"""Metadata of a field that follows from others, so that no table sets it."""

_FRACTION = re.compile(r"\d+/0*[1-9]\d*")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", types.NoneType: f'"{NONE}"'}


def updated(value: T, table: Mapping[str, Any], path: str = "") -> T:
    """A copy of a dataclass instance with the fields that `table` names changed; a table within changes part of one.

    A part that is None and cannot be made of defaults alone, such as an attack, needs its `kind` named: otherwise one
    setting of it would silently bring in all the others.

    Args:
        value: any instance of a frozen dataclass.
        table: names to new values: plain ones, tables, or instances of what the field holds.
        path: the key of `value` itself, for messages.
    """
    hints, names = typing.get_type_hints(type(value)), field_names(type(value))
    changes = {}
    for name, new in table.items():
        if name not in names:
            raise unknown_key(_join(path, name), keys_of(type(value), path))
        changes[name] = _convert(hints[name], getattr(value, name), new, _join(path, name))
    result: T = _make(lambda: dataclasses.replace(value, **changes), path)  # type: ignore[type-var]
    return result


def to_table(value: Any) -> dict[str, Any]:
    """The fields of a dataclass instance as plain values and tables, so that `updated` gives it back."""
    hints = typing.get_type_hints(type(value))
    return {name: _plain(getattr(value, name), hints[name]) for name in field_names(type(value))}


def to_toml(table: Mapping[str, Any]) -> str:
    """A nested table as TOML text."""
    return "\n".join(_toml_lines(table, ())).strip() + "\n"


def parse_literal(text: str) -> Any:
    """What a value typed after `key=` means: TOML if it is TOML, otherwise text."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"attack.threat.eps": 0.1} as {"attack": {"threat": {"eps": 0.1}}}."""
    root: dict[str, Any] = {}
    for key, value in settings.items():
        *path, leaf = key.split(".")
        table = root
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{key}: {part!r} has been given a value of its own already")
        if isinstance(table.get(leaf), dict):
            raise ConfigError(f"{key}: a part of it has been set already; set the whole of it first")
        table[leaf] = value
    return root


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested tables in one; where both have a plain value, that of `above`."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def field_names(cls: Any) -> list[str]:
    """The fields of a dataclass that a table may name."""
    # what does not belong to a value's identity does not belong to its table either
    fields = [field for field in dataclasses.fields(cls) if field.init and field.repr]
    return [field.name for field in fields if not field.metadata.get("derived")]


def keys_of(cls: Any, path: str = "") -> list[str]:
    """Every key that a table of a dataclass may have, those of its parts, of whatever kind, included.

    Args:
        cls: the dataclass.
        path: the key of the dataclass itself.
    """
    hints, keys = typing.get_type_hints(cls), []
    for name in field_names(cls):
        keys.append(part := _join(path, name))
        options = _options(hints[name])
        kinds = [option for option in options if dataclasses.is_dataclass(option)]
        if kinds and len(options) > 1:
            keys.append(_join(part, "kind"))
        for kind in kinds:
            keys += keys_of(kind, part)
    return list(dict.fromkeys(keys))


def unknown_key(key: str, keys: Iterable[str]) -> ConfigError:
    """The error about a key that does not exist, with those that were probably meant.

    Args:
        key: the whole of it.
        keys: all that there are.
    """
    place, _, name = key.rpartition(".")
    ends = {each: each.rpartition(".")[2] for each in keys}
    if key in ends:
        return ConfigError(
            f"key={key!r} is one name with a dot in it, which no key has: write it without the quotes, "
            f"{key} = ..., or as a table within a table"
        )
    beside = {each: end for each, end in ends.items() if each.rpartition(".")[0] == place}
    same = [each for each, end in ends.items() if end == name]
    alike = (
        same
        or _ending_like(name, beside, 0.7)
        or [each for each, end in beside.items() if _shortens(end, name) or _shortens(name, end)]
        or _ending_like(name, ends, 0.8)
        or [each for each, end in ends.items() if _shortens(end, name)]
    )
    # a part that is only misspelt decides among keys that end alike, and so does one that is right
    meant = get_close_matches(key, alike, n=1, cutoff=0.85) if same else []
    meant = meant or [each for each in alike if each.startswith(f"{place}.")] or alike
    hint = f"; did you mean {' or '.join(map(repr, meant))}?" if meant else ""
    if same:
        return ConfigError(f"key={key!r} is unknown{hint}")
    listed = beside or [each for each in ends if "." not in each]
    return ConfigError(f"key={key!r} is unknown: expected one of {', '.join(map(repr, sorted(listed)))}{hint}")


def kind_of(cls: Any) -> str:
    """The name of a class in a table: `OneCycle` is "one_cycle"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def _ending_like(name: str, ends: Mapping[str, str], cutoff: float) -> list[str]:
    """Of keys, given with their ends, those whose end is the nearest to a name, if it is near enough."""
    nearest = get_close_matches(name, sorted(set(ends.values())), n=1, cutoff=cutoff)
    return [each for each, end in ends.items() if end in nearest]


def _shortens(short: str, name: str) -> bool:
    """Whether one name is short for another: `lr` for `learning_rate`, `eps` for `epsilon`, `std` for `init_std`."""
    words = name.split("_")
    if not short:
        return False
    return short == "".join(word[:1] for word in words) or any(word.startswith(short) for word in words)


def _convert(hint: Any, current: Any, new: Any, path: str) -> Any:
    options = _options(hint)
    kinds: dict[str, Any] = {kind_of(option): option for option in options if dataclasses.is_dataclass(option)}
    if new is None or (new == NONE and types.NoneType in options):
        new = {"kind": NONE} if kinds else None
    if kinds and dataclasses.is_dataclass(new) and isinstance(new, tuple(kinds.values())):
        return new
    if kinds and isinstance(new, str):
        new = {"kind": new}
    if kinds and isinstance(new, Mapping):
        return _convert_table(kinds, types.NoneType in options, current, new, path)
    for option in options:
        converted = _convert_plain(option, new, path)
        if converted is not _REFUSED:
            return converted
    expected = "a table" if kinds else " or ".join(_describe(option) for option in options)
    raise ConfigError(f"{path}: expected {expected}, got {new!r}")


def _convert_table(kinds: dict[str, Any], optional: bool, current: Any, table: Mapping[str, Any], path: str) -> Any:
    usual = kind_of(type(current)) if current is not None else next(iter(kinds)) if len(kinds) == 1 else None
    kind = table.get("kind", usual)
    if kind == NONE and optional:
        return None
    if kind not in kinds:
        raise ConfigError(str(unknown(f"{path}.kind", kind, [*kinds, NONE] if optional else kinds)))
    rest = {name: value for name, value in table.items() if name != "kind"}
    if current is None and "kind" not in table and _needed(kinds[kind]):
        raise ConfigError(
            f"{_join(path, next(iter(rest), 'kind'))}: {path} is none here, so there is nothing to change; "
            f'leave it out, or give the whole of it, as {path} = {{kind = "{kind}", ...}}'
        )
    _check_owner(kinds, kind, rest, path)
    base = current if kind_of(type(current)) == kind else _make(lambda: _default(kinds[kind]), path)
    return updated(base, rest, path)


def _check_owner(kinds: dict[str, Any], kind: str, names: Iterable[str], path: str) -> None:
    """Names that only other kinds of a part have are mistakes of a sort of their own."""
    known = {other: field_names(cls) for other, cls in kinds.items()}
    for name in names:
        if name in known[kind]:
            continue
        owners = [f'"{other}"' for other, fields in known.items() if name in fields]
        key = _join(path, name)
        if owners:
            raise ConfigError(
                f'{key} is for {path}.kind = {" or ".join(owners)}, and here {path} is "{kind}"; '
                f"set {path}.kind as well, or leave {key} out"
            )
        if not known[kind]:
            raise unknown_key(key, [each for cls in kinds.values() for each in keys_of(cls, path)])


_REFUSED = object()


def _convert_plain(option: Any, new: Any, path: str) -> Any:
    origin = typing.get_origin(option)
    if origin is tuple:
        return _convert_tuple(typing.get_args(option), new, path)
    if option is float:
        if isinstance(new, str) and _FRACTION.fullmatch(new):
            return float(Fraction(new))
        return float(new) if isinstance(new, int | float) and not isinstance(new, bool) else _REFUSED
    if option is int:
        return new if isinstance(new, int) and not isinstance(new, bool) else _REFUSED
    return new if isinstance(option, type) and isinstance(new, option) else _REFUSED


def _convert_tuple(arguments: tuple[Any, ...], new: Any, path: str) -> Any:
    if not isinstance(new, list | tuple):
        return _REFUSED
    each = arguments[:1] * len(new) if arguments[-1:] == (Ellipsis,) else arguments
    if len(each) != len(new):
        raise ConfigError(f"{path}: expected a list of {len(each)} values, got {list(new)}")
    pairs = enumerate(zip(each, new, strict=True))
    return tuple(_convert(hint, None, value, f"{path}[{place}]") for place, (hint, value) in pairs)


def _default(cls: Any) -> Any:
    """An instance with every default; a field without one, if it is a dataclass itself, with its defaults."""
    hints = typing.get_type_hints(cls)
    return cls(**{name: _default(hints[name]) for name in _needed(cls)})


def _needed(cls: Any) -> list[str]:
    """The fields of a dataclass that have no default."""
    fields = [field for field in dataclasses.fields(cls) if field.init]
    return [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]


def _make(build: Any, path: str) -> Any:
    try:
        return build()
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}" if path else str(error)) from error


def _plain(value: Any, hint: Any = None) -> Any:
    if value is None:
        return NONE
    if dataclasses.is_dataclass(value):
        table = to_table(value)
        return {"kind": kind_of(type(value)), **table} if len(_options(hint)) > 1 else table
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _options(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _describe(option: Any) -> str:
    if typing.get_origin(option) is tuple:
        return f"a list of which each is {_describe(typing.get_args(option)[0])}"
    return _WORDS.get(option, getattr(option, "__name__", str(option)))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"[{'.'.join(path)}]"] if path else []
    lines += [f"{key} = {_toml_value(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", *_toml_lines(value, (*path, key))]
    return lines


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf and nan are spelt alike in TOML
    if isinstance(value, numbers.Integral):
        return repr(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))  # also of numpy's, whose own form is no TOML
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    import json

    return json.dumps(str(value), ensure_ascii=False)
