"""The settings of an attack as JSON values: two attacks are the same if and only if these are equal."""

import functools
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from numbers import Integral, Real
from typing import Any

from torch import Tensor, nn

from advbnn.attacks.threat import Threat
from advbnn.modules import tensor_bytes

Identify = Callable[[nn.Module], Any]

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")


def settings_of(attack: object, identify: Identify = lambda network: None) -> dict[str, Any]:
    """The class of an attack and every field that differs from its default.

    Defaults are left out, so that a new field with a default leaves stored settings valid. Fields that do not decide
    the result, such as `batch_size` and `progress`, are marked by `compare=False` and are left out too. An attack that
    is not a dataclass may give its `settings`, a mapping. Else it has its `repr` for a name; without one, its qualified
    name and its public attributes count. `identify` describes a network that the attack uses, such as the source of a
    `Transfer`; its SHA-256 in records.
    """
    if is_dataclass(attack) and not isinstance(attack, type):
        return {"name": type(attack).__name__, **json_value(_changed(attack), identify)}
    named = attack if hasattr(attack, "__qualname__") else type(attack)  # functions and classes have such a name
    public = _public(attack)
    if isinstance(getattr(attack, "settings", None), Mapping):
        public = {"threat": getattr(attack, "threat", None), **getattr(attack, "settings", {})}
    elif isinstance(attack, functools.partial):
        public |= {"function": attack.func, "arguments": attack.args, **attack.keywords}
    elif named is not attack and type(attack).__repr__ is not object.__repr__:
        return {"name": repr(attack)}
    return {"name": f"{named.__module__}.{named.__qualname__}", **json_value(public, identify)}


def _public(attack: object) -> dict[str, Any]:
    """Its attributes that are not private, and those of its classes, and what it closes over, that are values."""
    of_classes = [vars(kind) for kind in reversed(type(attack).__mro__)]
    values = (bool, int, float, str, tuple, list, dict, Threat)
    found = {name: value for one in of_classes for name, value in one.items() if isinstance(value, values)}
    closed = {
        name: value for name, value in closed_over(attack).items() if isinstance(value, (*values, Tensor, nn.Module))
    }
    found |= closed | getattr(attack, "__dict__", {})
    return {name: value for name, value in found.items() if not name.startswith("_")}


def closed_over(function: Any) -> dict[str, Any]:
    """What a function that another one made holds, by name; nothing for any other object."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    found = {}
    for name, cell in zip(() if code is None else code.co_freevars, cells, strict=True):
        with suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def memory_address(settings: Any) -> str | None:
    """The first text in settings that holds a memory address, which another process would not give; else None."""
    if isinstance(settings, Mapping):
        settings = list(settings.values())
    if isinstance(settings, list):
        return next((found for inner in settings if (found := memory_address(inner)) is not None), None)
    return settings if isinstance(settings, str) and _ADDRESS.search(settings) else None


def _changed(settings: Any) -> dict[str, Any]:
    """The fields that count and differ from their defaults."""
    found = {}
    for field in fields(settings):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        value = getattr(settings, field.name)
        if field.compare and (isinstance(value, Tensor) or value != default):
            found[field.name] = value
    return found


def json_value(value: Any, identify: Identify = lambda network: None) -> Any:
    """A setting as a JSON value."""
    if isinstance(value, nn.Module):
        return identify(value)
    if isinstance(value, Tensor):  # whose repr leaves out most of its values
        return hashlib.sha256(tensor_bytes(value)).hexdigest()
    if isinstance(value, Threat):
        value = {"norm": value.norm, "eps": value.eps, **_changed(value)}  # a radius is always stated
    if isinstance(value, Mapping):
        return {str(name): json_value(inner, identify) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner, identify) for inner in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):  # NumPy's, too
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(float(value))  # JSON has no infinity
    return settings_of(value, identify)
