"""What an evaluation refuses: models, data and attacks that it cannot use, and attacks that leave their threat."""

import inspect
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from advbnn.attacks.identity import memory_address, settings_of
from advbnn.attacks.threat import Threat
from advbnn.data.imageset import Examples, row_numbers
from advbnn.data.splits import Splits
from advbnn.errors import ArgumentError, ArgumentTypeError


class Perturbation(Protocol):
    """Any attack: one of `advbnn.attacks`, or your own; `check_attack` refuses what does not keep to this protocol."""

    @property
    def threat(self) -> Threat:
        """The allowed perturbations; `evaluate` checks that the attack keeps to them."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
        """Perturbed inputs, in the allowed set around `x`; the same for the same seed.

        `model` is in evaluation mode, and its parameters require no gradient. The global generators of torch, NumPy and
        Python follow `seed` during the call.
        """


def check_model_and_examples(model: nn.Module, data: Examples, returns: str) -> None:
    """Refuse what is not a network, or not one set of examples; `returns` is what the network should return."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model must be a torch.nn.Module that returns {returns}, got {type(model).__name__}")
    if isinstance(data, Splits):
        raise ArgumentTypeError("data must be one set of examples, got Splits; pass splits.test")
    if not hasattr(data, "classes"):
        raise ArgumentTypeError(
            f"data must be examples, got {type(data).__name__}; make them with advbnn.data.from_tensors(x, y)"
        )


def check_classification(model: nn.Module, data: Examples) -> None:
    """Refuse what is not a classifier with images to evaluate it on."""
    check_model_and_examples(model, data, "logits")
    if not data.classes:
        raise ArgumentError(f"data must have classes, {data.name!r} is a regression set; use advbnn.score_regression")


def check_rows(rows: Sequence[int] | Tensor, n: int, argument: str = "rows") -> int:
    """The number of rows; an error if one is repeated, as intervals assume that many different images."""
    chosen = row_numbers(rows, n, argument)
    if (different := len(chosen.unique())) < len(chosen):
        raise ArgumentError(f"{argument} must name each example once, got {len(chosen)} rows of {different} examples")
    return len(chosen)


def check_attack(name: str, attack: object) -> None:
    """Refuse what is not an attack as `Perturbation` describes it, and targeted attacks: they get the true labels."""
    if not callable(attack) or not isinstance(getattr(attack, "threat", None), Threat):
        raise ArgumentTypeError(
            f"attack {name!r} must be callable and have a threat, such as attacks.PGD(...); got {attack!r}"
        )
    if isinstance(attack, type):
        raise ArgumentTypeError(f"attack {name!r} is a class; give an instance of it, {attack.__name__}(...)")
    try:
        inspect.signature(attack).bind(None, None, None, seed=0)
    except TypeError as error:
        raise ArgumentTypeError(
            f"attack {name!r} must take (model, x, y, seed), the last by name, but {error}; "
            "define it as def attack(model, x, y, seed=None)"
        ) from None
    if getattr(getattr(attack, "attack", attack), "targeted", False):
        raise ArgumentError(f"attack {name!r} is targeted, but is given the true labels here; use targeted=False")
    if (unstable := memory_address(settings_of(attack))) is not None:
        raise ArgumentError(
            f"attack {name!r} has no stable identity: {unstable!r} holds a memory address, so another process would "
            "not know its record again; make it a dataclass, or give it settings, a dict of numbers and strings"
        )


def check_allowed(attack: Perturbation, x_adv: Tensor, x: Tensor) -> None:
    """Refuse perturbed inputs that the threat of the attack does not allow."""
    threat, name = attack.threat, f"attack {type(attack).__name__}"
    expected = f"expected a tensor of {x.dtype} of the inputs' shape {tuple(x.shape)}; return x + the perturbation"
    if not isinstance(x_adv, Tensor):
        raise ArgumentTypeError(f"{name} returned {type(x_adv).__name__}, {expected}")
    if x_adv.shape != x.shape or x_adv.dtype != x.dtype:
        raise ArgumentError(f"{name} returned {x_adv.dtype} of shape {tuple(x_adv.shape)}, {expected}")
    ends = (end.double() for end in x_adv.aminmax())
    furthest, least, most = torch.stack([threat.distance(x_adv, x).max(), *ends]).tolist()  # waits for the device once
    low, high = (torch.tensor(bound, dtype=x.dtype).item() for bound in threat.bounds)
    # rounding in the dtype of the inputs may lengthen a perturbation of exactly the full radius
    allowed = threat.eps * (1 + 1e-6) + torch.finfo(x.dtype).eps
    if not math.isfinite(furthest + least + most):
        raise ArgumentError(f"{name} returned NaN or infinite values; check its step, and divisions by a norm of zero")
    if not (furthest <= allowed and low <= least and most <= high):
        raise ArgumentError(
            f"{name} left its threat: a perturbation of {threat.norm} norm {furthest:.6g}, values in "
            f"[{least:.6g}, {most:.6g}]; move its points back with threat.project"
        )
