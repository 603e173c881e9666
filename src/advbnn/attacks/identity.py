"""The settings of an attack as JSON values: two attacks are the same if and only if these are equal."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.attacks.threat import Threat

Identify = Callable[[nn.Module], Any]


def settings_of(attack: object, identify: Identify = lambda network: None) -> dict[str, Any]:
    """The class of an attack and every field that differs from its default.

    Defaults are left out, so that a new field with a default leaves stored settings valid. Fields that do not decide
    the result, such as `batch_size` and `progress`, are marked by `compare=False` and are left out too. An attack that
    is not a dataclass has its `repr` for a name; without one, its qualified name and its public attributes count.
    `identify` describes a network that the attack uses, such as the source of a `Transfer`: records have its SHA-256.
    """
    if is_dataclass(attack) and not isinstance(attack, type):
        return {"name": type(attack).__name__, **_json(_changed(attack), identify)}
    named = attack if hasattr(attack, "__qualname__") else type(attack)  # functions and classes have such a name
    if named is not attack and type(attack).__repr__ is not object.__repr__:
        return {"name": repr(attack)}
    public = {name: value for name, value in getattr(attack, "__dict__", {}).items() if not name.startswith("_")}
    return {"name": f"{named.__module__}.{named.__qualname__}", **_json(public, identify)}


def _changed(settings: Any) -> dict[str, Any]:
    found = {}
    for field in fields(settings):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        value = getattr(settings, field.name)
        if field.compare and (isinstance(value, Tensor) or value != default):
            found[field.name] = value
    return found


def _json(value: Any, identify: Identify) -> Any:
    if isinstance(value, nn.Module):
        return identify(value)
    if isinstance(value, Tensor):  # whose repr leaves out most of its values
        return hashlib.sha256(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data).hexdigest()
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
    return settings_of(value, identify)
