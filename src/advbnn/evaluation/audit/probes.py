"""Probes of a network without an attack: are its gradients and predictions reliable?"""

import copy
import math

import torch
from torch import Tensor, nn

from advbnn.attacks.gradient import input_gradient, mean_loss
from advbnn.attacks.losses import Objective
from advbnn.attacks.threat import Threat
from advbnn.evaluation.attackable import Attackable
from advbnn.evaluation.audit.attack_suite import even_change
from advbnn.evaluation.audit.consistency import points_nearby, total_variation, ways_of_calling
from advbnn.evaluation.audit.memory import memory
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import pass_under, seeded

_DIRECTIONS = 4
"""Random directions in which the gradient is compared with finite differences."""

_SAMPLES = 8
"""Weight samples whose gradients are compared with each other."""

_TINY = 2.0**-20
"""A change of an input in [0, 1] that is invisible, and representable in float32."""

_FEWEST_FOR_STATISTICS = 32
"""The smallest batch whose batch statistics are good enough to compare training and evaluation mode."""


def probe(
    model: Attackable, x: Tensor, y: Tensor, threat: Threat, samples: int, seed: int, random: bool = True
) -> dict[str, Tensor]:
    """Per image, [n] each, and [n, points] for the first three, which look at the `points_nearby`:

    - zero_gradient: the gradient of the cross-entropy is zero in every pixel; infinite_gradient: it is NaN or infinite.
    - explained: how much of the effect of small random steps on the margin the gradient predicts, at most 1.
    - cosine: the mean cosine between the gradients of two weight samples; NaN where one is zero, or if not `random`.
    - repeat: the total variation, 0 to 1, between two predictions under the same seed.
    - reseeds: a forward pass sets torch's generator itself, so that a seed given to it has no effect.
    - tiny_change: the total variation between the predictions of inputs that differ by a tiny change, under the same
      seed; NaN in less than float32, where rounding alone changes predictions.
    - batch: the total variation between the predictions of the same input in different batches, under the same seed.
    - evaluation_right, training_right: the ensemble of `samples` is correct in evaluation mode, and in training mode.
    - those of `ways_of_calling` and `memory`.

    The radius of `threat` is the scale of small steps. `random`: whether the network is random.
    """
    with without_parameter_gradients(model), evaluating(model):
        points = points_nearby(model, x, y, threat, seed)
        gradients = [_gradients(model, z, y, threat, seed, _SAMPLES if random else 1) for z in points]
        found = {
            **{name: torch.stack([one[name] for one in gradients], 1) for name in gradients[0]},
            "cosine": gradients[0]["cosine"],
            **_predictions(model, x, threat, seed),
            **_modes(model, x, y, samples, seed),
            **memory(model, x, _nearby(x, threat), seed),
        }
    return found | ways_of_calling(model, x, y, threat, seed, random)


def _gradients(model: Attackable, x: Tensor, y: Tensor, threat: Threat, seed: int, samples: int) -> dict[str, Tensor]:
    step = even_change(threat, x[0].numel()) / 10
    low, high = threat.bounds
    # a step to either side must stay in the box
    x = x.clamp(low + step, high - step)
    total, directions = (torch.zeros(len(x), x[0].numel(), dtype=torch.float64, device=x.device) for _ in range(2))
    with seeded(seed, x.device):
        for _ in range(samples):
            gradient = input_gradient(model.logits, x, y, Objective()).gradient.reshape(len(x), -1).double()
            total += gradient
            directions += gradient / gradient.norm(dim=1, keepdim=True)
    # the squared norm of a sum of unit vectors is the sum of all pairwise cosines, each vector with itself included
    cosines = directions.square().sum(1) - samples
    return {
        "zero_gradient": (total == 0).all(1),
        "infinite_gradient": ~total.isfinite().all(1),
        "cosine": cosines / (samples * (samples - 1)) if samples > 1 else torch.full_like(cosines, math.nan),
        "explained": _explained(model, x, y, step, seed, samples),
    }


def _explained(model: Attackable, x: Tensor, y: Tensor, step: float, seed: int, samples: int) -> Tensor:
    """1 - sum (a - p)^2 / sum a^2 for the changes a of the margin and the changes p that the gradient predicts."""
    objective = Objective(loss="margin")

    @torch.no_grad()
    def margin(z: Tensor) -> Tensor:
        with seeded(seed, x.device):
            return mean_loss((model(z) for _ in range(samples)), y, objective).values.double()

    with seeded(seed, x.device):
        slope = input_gradient(model, x, y, objective, samples).gradient.double()
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
def _predictions(model: Attackable, x: Tensor, threat: Threat, seed: int) -> dict[str, Tensor]:
    def prediction(z: Tensor, others: Tensor) -> Tensor:
        return pass_under(seed, model, torch.cat([z, others])).softmax(1)[: len(z)]

    middle = _middle(threat)
    alone = prediction(x, x)
    nearby = _nearby(x, threat)
    tiny_change = total_variation(alone, prediction(nearby, nearby))
    if torch.finfo(x.dtype).bits < 32 or torch.is_autocast_enabled(x.device.type):
        tiny_change.fill_(math.nan)
    ends = []
    for other_seed in (seed, seed + 1):
        with seeded(other_seed, x.device):
            model(x)
            ends.append(torch.get_rng_state())
    return {
        "repeat": total_variation(alone, prediction(x, x)),
        "tiny_change": tiny_change,
        "batch": total_variation(alone, prediction(x, 2 * middle - x)),
        "reseeds": torch.full((len(x),), torch.equal(*ends), device=x.device),
    }


@torch.no_grad()
def _modes(model: Attackable, x: Tensor, y: Tensor, samples: int, seed: int) -> dict[str, Tensor]:
    def right(network: nn.Module) -> Tensor:
        with seeded(seed, x.device):
            probs = [network(x).softmax(1) for _ in range(samples)]
        return torch.stack(probs).mean(0).argmax(1) == y

    in_evaluation = right(model)
    in_training = in_evaluation.clone()  # as the same tensor cannot be stored twice
    if len(x) >= _FEWEST_FOR_STATISTICS:
        training = copy.deepcopy(model).train()  # a copy, whose running statistics may change
        with seeded(seed, x.device):
            outputs, expected = training.model(x), model(x)
        # some networks return more while they are trained, such as the logits of several heads
        if isinstance(outputs, Tensor) and outputs.shape == expected.shape:
            in_training = right(training)
    return {"evaluation_right": in_evaluation, "training_right": in_training}


def _nearby(x: Tensor, threat: Threat) -> Tensor:
    low, high = threat.bounds
    return moved(x, _middle(threat), _TINY * (high - low if math.isfinite(high - low) else 1.0))


def _middle(threat: Threat) -> float:
    middle = sum(threat.bounds) / 2
    return middle if math.isfinite(middle) else 0.0


def moved(x: Tensor, middle: float, step: float) -> Tensor:
    """`x` with every value moved towards the middle by `step`, or else to the next number of its dtype."""
    inwards = torch.where(x > middle, -1.0, 1.0).to(x.dtype)
    nearby = x + inwards * step
    return torch.where(nearby == x, torch.nextafter(x, inwards * math.inf), nearby)
