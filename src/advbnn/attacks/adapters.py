"""Attacks of torchattacks and foolbox as attacks of this library: `attack(model, x, y, seed)`, inside a `Threat`.

from_torchattacks(torchattacks.PGD(model, eps=8 / 255, steps=20), Threat("linf", 8 / 255))
from_foolbox(foolbox.attacks.LinfPGD(steps=20), Threat("linf", 8 / 255))
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from advbnn.attacks.identity import json_value
from advbnn.attacks.threat import Threat
from advbnn.errors import ArgumentError, ArgumentTypeError
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import seeded_globally

_NOT_SETTINGS = {"model", "model_name", "device", "attack", "supported_mode", "normalization_used", "seed", "verbose"}
"""Attributes of an attack of torchattacks that do not decide its result; its seed is replaced at every call."""


@dataclass(frozen=True)
class Adapted(ABC):
    """An attack of another library. Its points are moved into the threat, and its randomness follows `seed`.

    Attributes:
        attack_name: the class of the attack.
        settings: its fields.
    """

    attack_name: str
    settings: Mapping[str, Any]
    threat: Threat
    inner: Any = field(repr=False, compare=False)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
        """Perturbed inputs, in the allowed set around `x`."""
        # a network in evaluation mode may keep dropout switched on, which must not be switched off
        with evaluating(model), without_parameter_gradients(model), seeded_globally(seed, x.device):
            found = self._run(_ModeKept(model), x.detach().clone(), y.clone(), seed)
        return self.threat.project(found.detach().to(x), x)

    @abstractmethod
    def _run(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None) -> Tensor: ...


class TorchattacksAttack(Adapted):
    """An attack of torchattacks; see `from_torchattacks`."""

    def _run(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None) -> Tensor:
        with _attacking(self.inner, model, x, seed):
            found: Tensor = self.inner(x, y)
        return found


class FoolboxAttack(Adapted):
    """An attack of foolbox; see `from_foolbox`."""

    def _run(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None) -> Tensor:
        from foolbox.models.pytorch import PyTorchModel

        wrapped = PyTorchModel(model, bounds=self.threat.bounds, device=x.device)
        found: Tensor = self.inner(wrapped, x, y, epsilons=self.threat.eps)[1]
        return found


def from_torchattacks(attack: Any, threat: Threat) -> TorchattacksAttack:
    """An attack of torchattacks, made with any model; it attacks the model that it is called on.

    `threat` is the norm, radius and box that it was made for. Where the attack has a fixed seed, such as `APGD`, the
    seed of the call replaces it.
    """
    if not hasattr(attack, "set_model") or not hasattr(attack, "attack_mode"):
        raise ArgumentTypeError(
            f"attack must be an attack of torchattacks, such as torchattacks.PGD(model, eps=8/255); got {attack!r}"
        )
    _check_threat(threat)
    radius = getattr(attack, "eps", threat.eps)
    if not math.isclose(radius, threat.eps, rel_tol=1e-6):
        raise ArgumentError(f"attack has eps={radius}, threat has eps={threat.eps}; give both the same radius")
    if attack.normalization_used is not None:
        raise ArgumentError(
            "attack normalizes its inputs (set_normalization_used); put the normalization inside the model"
        )
    if attack.attack_mode == "targeted(label)":
        raise ArgumentError("attack takes labels for targets, but is given the true labels; use set_mode_default()")
    return TorchattacksAttack(_qualified(attack), _torchattacks_settings(attack), threat, attack)


def from_foolbox(attack: Any, threat: Threat) -> FoolboxAttack:
    """An attack of foolbox at the radius of `threat`, whose norm must be the attack's; untargeted."""
    distance = getattr(attack, "distance", None)
    if not callable(attack) or distance is None:
        raise ArgumentTypeError(
            f"attack must be an attack of foolbox with a distance, such as foolbox.attacks.LinfPGD(); got {attack!r}"
        )
    _check_threat(threat)
    norm = {math.inf: "linf", 2.0: "l2", 1.0: "l1"}.get(getattr(distance, "p", math.nan), str(distance))
    if norm != threat.norm:
        raise ArgumentError(f"attack is for norm {norm}, threat has norm {threat.norm!r}; choose the same norm")
    fields = {name.strip("_"): json_value(value) for name, value in vars(attack).items()}
    return FoolboxAttack(_qualified(attack), fields, threat, attack)


def _check_threat(threat: object) -> None:
    if not isinstance(threat, Threat):
        raise ArgumentTypeError(f"threat must be a Threat such as Threat('linf', 8/255), got {threat!r}")


def _qualified(attack: object) -> str:
    return f"{type(attack).__module__}.{type(attack).__qualname__}"


def _torchattacks_settings(attack: Any) -> dict[str, Any]:
    public = {name: value for name, value in vars(attack).items() if name[0] != "_" and name not in _NOT_SETTINGS}
    return {name: _torchattacks_value(value) for name, value in public.items()}


def _torchattacks_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_torchattacks_value(inner) for inner in value]
    if hasattr(value, "attack_mode"):  # an attack inside, as in MultiAttack
        return {"name": _qualified(value), **_torchattacks_settings(value)}
    return json_value(value)


@contextmanager
def _attacking(attack: Any, model: nn.Module, x: Tensor, seed: int | None) -> Iterator[None]:
    """Within the block, the attack and those inside it attack `model`, with this seed."""
    before, device = attack.model, attack.device
    seeds = [(one, one.seed) for one in _with_inner(attack) if hasattr(one, "seed")]
    attack.set_model(model)
    attack.set_device(x.device)
    try:
        for one, _ in seeds if seed is not None else ():
            one.seed = seed
        yield
    finally:
        attack.set_model(before)
        attack.set_device(device)
        for one, own in seeds:
            one.seed = own


def _with_inner(attack: Any) -> Iterator[Any]:
    yield attack
    for inner in vars(attack).get("_attacks", {}).values():
        yield from _with_inner(inner)


class _ModeKept(nn.Module):
    """A network whose mode others cannot change."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = False

    def train(self, mode: bool = True) -> "_ModeKept":
        return self

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.model(x)
        return outputs
