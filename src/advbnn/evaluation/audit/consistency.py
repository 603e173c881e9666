"""Probes of whether a network treats an image the same way however it is called.

A network can look at the size of the batch, at the gradient mode or at the memory format, and behave well only as an
attack or an evaluation calls it.
"""

import copy
import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from advbnn.attacks.gradient import input_gradient
from advbnn.attacks.losses import Objective
from advbnn.attacks.threat import Threat
from advbnn.evaluation.attackable import Attackable
from advbnn.evaluation.audit.attack_suite import even_change
from advbnn.evaluation.audit.history import relative_change
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import derive_seed, pass_under, seeded

CLEAR = 0.01
"""The total variation from which two predictions count as different; other kernels round in other ways."""

_FEW_IMAGES = 8
"""The images of a batch that are classified alone and in pairs."""

_DRAWS = 16
"""Passes by which predictions are compared if the random numbers depend on the batch size or the memory format."""

_STANDARD_ERRORS = 5.0
"""With 16 paired draws, equal means differ by that many standard errors with a probability of 0.02 %."""

WAYS = {
    "alone": "alone in its batch",
    "in_pairs": "in a batch of two",
    "gradients_on": "with gradients switched on",
    "differentiated": "if the input requires a gradient",
    "trainable": "if the weights require gradients",
    "inference": "in inference mode",
    "channels_last": "in the memory format channels_last",
}
"""Ways to call a network, as probed and in words; of these, `SIZES` are sizes of the batch."""

SIZES = ("alone", "in_pairs")

_Predict = Callable[[int], Tensor]  # the probabilities under a seed
_Mode = Callable[[], AbstractContextManager[None]]  # of autograd


def ways_of_calling(
    model: Attackable, x: Tensor, y: Tensor, threat: Threat, seed: int, random: bool
) -> dict[str, Tensor]:
    """For each of `WAYS` the total variation, [n], between predictions when the network is called so and otherwise.

    It is the largest at the `points_nearby`. NaN where it was not measured: below float32, and of all but a few images
    alone and in pairs. Predictions have the same seed. Where that makes a difference for a random network, because its
    random numbers depend on the batch size or the memory format, means over several seeds are compared instead.
    """
    if torch.finfo(x.dtype).bits < 32 or torch.is_autocast_enabled(x.device.type):
        return {name: torch.full((len(x),), math.nan, device=x.device) for name in WAYS}
    with evaluating(model):
        # a random state that is drawn in inference mode could not be used elsewhere
        other = copy.deepcopy(model)
        found = [_changes(model, other, z, seed, random) for z in points_nearby(model, x, y, threat, seed)]
    return {name: torch.stack([changes[name] for changes in found]).amax(0) for name in WAYS}


@torch.no_grad()
def seeded_logits(model: Attackable, x: Tensor, seed: int) -> Tensor:
    """Logits under a seed, to be compared with those of another time: see `changed_since`."""
    with evaluating(model):
        return pass_under(seed, model, x)


def changed_since(earlier: Tensor, model: Attackable, x: Tensor, seed: int) -> Tensor:
    """By how much `seeded_logits` differ from earlier ones, relative to the largest of them, [n]."""
    return relative_change(earlier, seeded_logits(model, x, seed))


def points_nearby(model: Attackable, x: Tensor, y: Tensor, threat: Threat, seed: int) -> list[Tensor]:
    """The image, a random point of the allowed set around it, and the point that the sign of the gradient gives.

    A network may treat clean images in another way than those on which an attack works.
    """
    generator = torch.Generator(x.device).manual_seed(seed)
    with seeded(seed, x.device), without_parameter_gradients(model):
        gradient = input_gradient(model, x, y, Objective(loss="margin")).gradient
    step = 2 * even_change(threat, x[0].numel())
    return [x, threat.start(x, generator), threat.project(x + step * gradient.sign(), x)]


def _changes(model: Attackable, other: Attackable, z: Tensor, seed: int, random: bool) -> dict[str, Tensor]:
    def called(*parts: Tensor, by: Attackable = model, mode: _Mode = torch.no_grad, frozen: bool = True) -> _Predict:
        """The probabilities under a seed if the network is called so, part by part."""

        def predict(seed: int) -> Tensor:
            with mode(), without_parameter_gradients(by) if frozen else nullcontext():
                found = torch.cat([pass_under(seed, by, part).detach().softmax(1) for part in parts])
            return found.clone()  # as a tensor of inference mode can be used nowhere else

        return predict

    plain = functools.cache(called(z))
    few = z[: len(z) - len(z) % 2 or 1][:_FEW_IMAGES]
    ways = {
        "gradients_on": called(z, mode=torch.enable_grad),
        "differentiated": called(z.clone().requires_grad_(), mode=torch.enable_grad),
        "trainable": called(z, frozen=False),
        "inference": called(z, by=other, mode=torch.inference_mode),
        "channels_last": called(z.clone(memory_format=torch.channels_last) if z.dim() == 4 else z),
    }
    found = {name: _change(plain, way, seed, random) for name, way in ways.items()}
    for name, size in zip(SIZES, (1, 2), strict=True):
        change = _change(lambda seed: plain(seed)[: len(few)], called(*few.split(size)), seed, random)
        found[name] = torch.full((len(z),), math.nan, device=z.device)
        found[name][: len(few)] = change
    return found


def _change(usual: _Predict, other: _Predict, seed: int, random: bool) -> Tensor:
    """The total variation under one seed; if the network is random, and it is large, that of the means over seeds."""
    change = total_variation(usual(seed), other(seed))
    if not random or bool((change <= CLEAR).all()):
        return change
    seeds = [derive_seed(seed, "ways of calling", number) for number in range(_DRAWS)]
    differences = torch.stack([usual(one) - other(one) for one in seeds]).double()
    mean, error = differences.mean(0), differences.std(0) / math.sqrt(_DRAWS)
    return torch.where(mean.abs() > _STANDARD_ERRORS * error, mean.abs(), 0.0).amax(1).to(change)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    return (p - q).abs().sum(1) / 2
