"""Frozen dataclasses as nested TOML tables, and back.

A field that holds one of several dataclasses is a table with a key `kind`, the class name in snake case (or the class
attribute `kind`); `"none"` or `"None"` means None. Every error names the full key, what was expected and what was
given.
"""

import dataclasses
import json
import numbers
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, TypeVar

from advbnn.errors import ConfigError, shown, unknown

T = TypeVar("T")

NONE = "none"
DERIVED = types.MappingProxyType({"derived": True})
"""Metadata of a field that follows from the others and is not a key."""

_FRACTION = re.compile(r"\d+/0*[1-9]\d*")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", types.NoneType: f'"{NONE}"'}
_REFUSED = object()
_ALSO_CALLED = {"draws": "samples", "learning_rate": "lr", "epsilon": "eps", "radius": "eps"}
"""Common names of settings that have another one here."""


def updated(value: T, table: Mapping[str, Any], path: str = "") -> T:
    """A copy of a dataclass instance with the fields named in `table` changed; a nested table changes part of a field.

    A field that is None and has no complete set of defaults, such as an attack, needs its `kind`: otherwise setting
    one value would silently bring in all the others.

    The table has plain values, tables, or instances of the field's type. `path` is the key of `value`, for messages.
    """
    hints, names = typing.get_type_hints(type(value)), field_names(type(value))
    changes = {}
    for name, new in table.items():
        if name not in names:
            raise unknown_key(_join(path, name), keys_of(type(value), path))
        changes[name] = _convert(hints[name], getattr(value, name), new, _join(path, name))
    try:
        return dataclasses.replace(value, **changes)  # type: ignore[type-var]
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}" if path else str(error)) from error


def to_table(value: Any) -> dict[str, Any]:
    """The fields of a dataclass instance as plain values and tables; the inverse of `updated`."""
    hints = typing.get_type_hints(type(value))
    return {name: _plain(getattr(value, name), hints[name]) for name in field_names(type(value))}


def to_toml(table: Mapping[str, Any]) -> str:
    """A nested table as TOML text."""
    return "\n".join(_toml_lines(table, ())).strip() + "\n"


def parse(text: str) -> dict[str, Any]:
    """TOML text as a nested table; a byte order mark at its beginning is ignored."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(error)) from error


def parse_literal(text: str) -> Any:
    """The value in `key=value`: parsed as TOML if possible, otherwise text."""
    try:
        return parse(f"value = {text}")["value"]
    except ConfigError:
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
                raise ConfigError(f"{key}: {part!r} has been set to a value; set it once, or set only its parts")
        if isinstance(table.get(leaf), dict):
            raise ConfigError(f"{key}: a part of it has been set already; set the whole of it first")
        table[leaf] = value
    return root


def flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The inverse of `nested`."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{path}{key}.") if isinstance(value, Mapping) else {path + key: value}
    return found


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested tables in one; where both have a plain value, `above` wins."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def field_names(cls: Any) -> list[str]:
    """The fields of a dataclass that are keys; a field left out of `repr` is no part of its identity, and no key."""
    fields = [field for field in dataclasses.fields(cls) if field.init and field.repr]
    return [field.name for field in fields if not field.metadata.get("derived")]


def keys_of(cls: Any, path: str = "") -> list[str]:
    """Every key of a dataclass at `path`, including the keys of its parts, of every kind."""
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
    """The error for a key that does not exist; it suggests keys with the same last name, or else the nearest key."""
    known = list(keys)
    if key in known:
        return ConfigError(f"key={key!r} is quoted, so TOML reads it as one name: write {key} = ... without the quotes")
    place, _, name = key.rpartition(".")
    key_here = _join(place, _ALSO_CALLED.get(name, name))
    same_name = [each for each in known if each.rpartition(".")[2] == key_here.rpartition(".")[2]]
    meant = get_close_matches(key_here, same_name or known, n=1, cutoff=0.8) or same_name
    # of several, those that are not inside another setting, such as the schedule of a section
    meant = [each for each in meant if each.count(".") == min(other.count(".") for other in meant)]
    hint = f"; did you mean {' or '.join(map(repr, meant))}?" if meant else ""
    beside = [each for each in known if each.rpartition(".")[0] == place] or [each for each in known if "." not in each]
    return ConfigError(f"key={key!r} is unknown: expected one of {', '.join(map(repr, sorted(beside)))}{hint}")


def kind_of(cls: Any) -> str:
    """The name of a class in a table: `OneCycle` is "one_cycle"."""
    return str(getattr(cls, "kind", None) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower())


def _convert(hint: Any, current: Any, new: Any, path: str) -> Any:
    options = _options(hint)
    kinds: dict[str, Any] = {kind_of(option): option for option in options if dataclasses.is_dataclass(option)}
    if new is None or (new in (NONE, "None") and types.NoneType in options):
        new = {"kind": NONE} if kinds else None
    if kinds and isinstance(new, tuple(kinds.values())):
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
    raise ConfigError(f"{path}: expected {expected}, got {shown(new)}")


def _convert_table(kinds: dict[str, Any], optional: bool, current: Any, table: Mapping[str, Any], path: str) -> Any:
    usual = kind_of(type(current)) if current is not None else next(iter(kinds)) if len(kinds) == 1 else None
    kind = table.get("kind", usual)
    if kind == NONE and optional:
        return None
    if kind not in kinds:
        raise ConfigError(str(unknown(f"{path}.kind", kind, [*kinds, NONE] if optional else kinds)))
    rest = {name: value for name, value in table.items() if name != "kind"}
    if current is None and "kind" not in table and _required(kinds[kind]):
        key = _join(path, next(iter(rest), "kind"))
        raise ConfigError(
            f'{key}: this defence has no {path}; remove it, or define all: {path} = {{kind = "{kind}", ...}}'
        )
    for name in rest:
        owners = [f'"{other}"' for other, cls in kinds.items() if name in field_names(cls)]
        if owners and f'"{kind}"' not in owners:
            key = _join(path, name)
            raise ConfigError(
                f'{key} is for {path}.kind = {" or ".join(owners)}, not "{kind}"; set {path}.kind as well'
            )
    return updated(current if kind_of(type(current)) == kind else _default(kinds[kind]), rest, path)


def _convert_plain(option: Any, new: Any, path: str) -> Any:
    if typing.get_origin(option) is tuple:
        return _convert_tuple(typing.get_args(option), new, path)
    if option is float and isinstance(new, str) and _FRACTION.fullmatch(new):
        new = Fraction(new)
    if isinstance(new, bool) and option is not bool:
        return _REFUSED
    if option is float and isinstance(new, int | float | Fraction):
        return float(new)
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
    """An instance of defaults; a required field is a dataclass itself, and gets its own defaults."""
    hints = typing.get_type_hints(cls)
    return cls(**{name: _default(hints[name]) for name in _required(cls)})


def _required(cls: Any) -> list[str]:
    fields = [field for field in dataclasses.fields(cls) if field.init]
    return [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]


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
        return f"a list in which each is {_describe(typing.get_args(option)[0])}"
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
    if isinstance(value, numbers.Integral):
        return repr(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))  # numpy's own repr is not TOML, which spells inf and nan like Python
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    # like JSON, but TOML also escapes the control character DEL
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
