"""The settings of an attack as JSON values: two attacks are the same if and only if these are equal."""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from advbnn.attacks.threat import Threat

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def settings_of(attack: object, identify: Callable[[nn.Module], Any] = lambda network: None) -> dict[str, Any]:
    """The class of an attack and every field that differs from its default.

    Defaults are left out, so that a new field with a default leaves stored settings valid. Fields that do not decide
    the result, such as `batch_size` and `progress`, are marked by `compare=False` and are left out too. An attack that
    is not a dataclass is described by its `repr`, or by its qualified name where the `repr` is only an address.

    Args:
        attack: any attack.
        identify: describes a network that the attack uses, such as the source of a `Transfer`; its SHA-256 in records.
    """
    if not is_dataclass(attack) or isinstance(attack, type):
        return {"name": _description(attack)}
    return {"name": type(attack).__name__, **_json(_changed(attack), identify)}


def _changed(settings: "DataclassInstance") -> dict[str, Any]:
    """The fields that count and differ from their defaults."""
    found = {}
    for field in fields(settings):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        value = getattr(settings, field.name)
        if field.compare and (default is MISSING or value != default):
            found[field.name] = value
    return found


def _json(value: Any, identify: Callable[[nn.Module], Any]) -> Any:
    if isinstance(value, nn.Module):
        return identify(value)
    if isinstance(value, Threat):
        value = {"norm": value.norm, "eps": value.eps, **_changed(value)}  # a radius is always stated
    if isinstance(value, Mapping):
        return {str(name): _json(inner, identify) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json(inner, identify) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return settings_of(value, identify) if is_dataclass(value) else _description(value)


def _description(value: object) -> str:
    kind = type(value)
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__repr__ is object.__repr__ else repr(value)
