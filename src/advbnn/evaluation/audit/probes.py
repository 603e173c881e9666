"""Questions to a network that need no attack: can its gradients be believed, and does it answer twice alike?"""

import copy
import math

import torch
from torch import Tensor, nn

from advbnn.attacks.gradient import input_gradient, mean_loss
from advbnn.attacks.losses import Objective
from advbnn.attacks.threat import Threat
from advbnn.evaluation.attackable import Attackable
from advbnn.evaluation.audit.attack_suite import even_change
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import seeded

_DIRECTIONS = 4
"""Random directions in which the gradient is compared with what the network does."""

_DRAWS = 8
"""Draws whose gradients are compared with each other."""

_HAIR = 2.0**-20
"""A change of an input in [0, 1] that nobody can see and float32 can."""

_FEWEST_TO_NORMALISE = 32
"""Images whose statistics are good enough for a network that normalises by its batch."""


def probe(model: Attackable, x: Tensor, y: Tensor, threat: Threat, samples: int, seed: int) -> dict[str, Tensor]:
    """Per image, [n] each:

    - no_gradient: the gradient of the cross-entropy is zero in every pixel; bad_gradient: it is NaN or infinite.
    - explained: how much of what small random steps do to the margin the gradient foretells, at most 1.
    - cosine: the mean cosine between the gradients of two draws; NaN where a draw has none.
    - repeat: how far two answers under the same seed are apart, as the total variation between them, 0 to 1.
    - reseeds: a pass sets torch's generator itself, so that a seed given to it means nothing.
    - hair: how far the answers to inputs that differ by a hair are apart, under the same seed; NaN in a type so coarse
      that a hair is rounded away, and that rounding alone moves the answers.
    - batch: how far the answers to the same input in different batches are apart, under the same seed.
    - evaluation_right, training_right: the ensemble is right in evaluation mode, and in training mode.

    Args:
        model: the network.
        x: inputs.
        y: their labels.
        threat: says what a small step is.
        samples: draws of the ensemble.
        seed: of all the probes.
    """
    with without_parameter_gradients(model), evaluating(model):
        return {
            **_gradients(model, x, y, threat, seed),
            **_answers(model, x, threat, seed),
            **_modes(model, x, y, samples, seed),
        }


def _gradients(model: Attackable, x: Tensor, y: Tensor, threat: Threat, seed: int) -> dict[str, Tensor]:
    step = even_change(threat, x[0].numel()) / 10
    low, high = threat.bounds
    # a step to both sides must stay in the box, beyond which the network is nobody's business
    x = x.clamp(low + step, high - step)
    total, directions = (torch.zeros(len(x), x[0].numel(), dtype=torch.float64, device=x.device) for _ in range(2))
    with seeded(seed, x.device):
        for _ in range(_DRAWS):
            gradient = input_gradient(model.logits, x, y, Objective()).gradient.reshape(len(x), -1).double()
            total += gradient
            directions += gradient / gradient.norm(dim=1, keepdim=True)
    # the square of a sum of unit vectors is the sum of all cosines, of each vector with itself included
    cosines = directions.square().sum(1) - _DRAWS
    return {
        "no_gradient": (total == 0).all(1),
        "bad_gradient": ~total.isfinite().all(1),
        "cosine": cosines / (_DRAWS * (_DRAWS - 1)),
        "explained": _explained(model, x, y, step, seed),
    }


def _explained(model: Attackable, x: Tensor, y: Tensor, step: float, seed: int) -> Tensor:
    """1 - sum (a - p)^2 / sum a^2 for the actual changes a of the margin and those that the gradient predicts, p."""
    objective = Objective(loss="margin")

    @torch.no_grad()
    def margin(z: Tensor) -> Tensor:
        with seeded(seed, x.device):
            return mean_loss((model(z) for _ in range(_DRAWS)), y, objective).values.double()

    with seeded(seed, x.device):
        slope = input_gradient(model, x, y, objective, _DRAWS).gradient.double()
    generator = torch.Generator(x.device).manual_seed(seed)
    unexplained, changes = (torch.zeros(len(x), dtype=torch.float64, device=x.device) for _ in range(2))
    for _ in range(_DIRECTIONS):
        signs = torch.randint(2, x.shape, generator=generator, device=x.device).to(x) * 2 - 1
        actual = margin(x + step * signs) - margin(x - step * signs)
        predicted = 2 * step * (slope * signs).reshape(len(x), -1).sum(1)
        unexplained += (actual - predicted).square()
        changes += actual.square()
    flat = (changes == 0) & (unexplained == 0)
    return torch.where(flat, 1.0, 1 - unexplained / changes).clamp_min(-1)


@torch.no_grad()
def _answers(model: Attackable, x: Tensor, threat: Threat, seed: int) -> dict[str, Tensor]:
    def answer(z: Tensor, others: Tensor) -> Tensor:
        with seeded(seed, x.device):
            probs: Tensor = model(torch.cat([z, others])).softmax(1)
            return probs[: len(z)]

    low, high = threat.bounds
    middle = (low + high) / 2 if math.isfinite(low + high) else 0.0
    alone = answer(x, x)
    by_a_hair = _moved(x, middle, _HAIR * (high - low if math.isfinite(high - low) else 1.0))
    hair = _variation(alone, answer(by_a_hair, by_a_hair))
    ends = []
    for other_seed in (seed, seed + 1):
        with seeded(other_seed, x.device):
            model(x)
            ends.append(torch.get_rng_state())
    return {
        "repeat": _variation(alone, answer(x, x)),
        "hair": torch.full_like(hair, math.nan) if _is_coarse(x) else hair,
        "batch": _variation(alone, answer(x, 2 * middle - x)),
        "reseeds": torch.full((len(x),), torch.equal(*ends), device=x.device),
    }


@torch.no_grad()
def _modes(model: Attackable, x: Tensor, y: Tensor, samples: int, seed: int) -> dict[str, Tensor]:
    def right(network: nn.Module) -> Tensor:
        with seeded(seed, x.device):
            draws = [network(x).softmax(1) for _ in range(samples)]
        return torch.stack(draws).mean(0).argmax(1) == y

    as_deployed = right(model)
    if len(x) < _FEWEST_TO_NORMALISE:
        # not the same tensor twice, which cannot be stored
        return {"evaluation_right": as_deployed, "training_right": as_deployed.clone()}
    # a copy, since training mode updates the statistics of normalisation layers
    return {"evaluation_right": as_deployed, "training_right": right(copy.deepcopy(model).train())}


def _moved(x: Tensor, middle: float, hair: float) -> Tensor:
    """`x` with every value moved towards the middle, by a hair or else to the next number that its type has."""
    inwards = torch.where(x > middle, -1.0, 1.0).to(x.dtype)
    moved = x + inwards * hair
    return torch.where(moved == x, torch.nextafter(x, inwards * math.inf), moved)


def _is_coarse(x: Tensor) -> bool:
    """Whether the network computes with fewer digits than float32 has."""
    return torch.finfo(x.dtype).bits < 32 or torch.is_autocast_enabled(x.device.type)


def _variation(p: Tensor, q: Tensor) -> Tensor:
    """The total variation between rows of probabilities."""
    return (p - q).abs().sum(1) / 2
