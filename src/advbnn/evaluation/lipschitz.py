"""How steep the loss is around an image: the local Lipschitz value, and what an attack makes of it (eq. 14 to 16)."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from advbnn.attacks.gradient import input_gradient
from advbnn.attacks.losses import Objective, cross_entropy
from advbnn.attacks.threat import Threat
from advbnn.data.imageset import Examples
from advbnn.data.splits import Splits
from advbnn.evaluation.accuracy import Evaluation, Options, Perturbation
from advbnn.evaluation.batchwise import Batch
from advbnn.evaluation.records import Records, Spread
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import scoring_seed, seeded

_DUAL = {"linf": 1.0, "l2": 2.0, "l1": math.inf}


def local_lipschitz(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, samples: int = 20, seed: int | None = None
) -> tuple[Tensor, Tensor]:
    """gamma * |grad_x loss|, the most that the loss can grow to first order within the threat's ball (eq. 16).

    The norm is the dual of the threat's: for linf the sum of the absolute values. A random network has two such
    values, and both are returned, [n] each:

    - gamma * |E_w grad_x loss|: the growth of the expected loss, for an attacker who has to choose one perturbation
      for all draws. Averaged over few draws it is too large, by the noise that is left in the mean gradient.
    - gamma * E_w |grad_x loss|: the mean growth for an attacker who knows each draw. It is never the smaller one, and
      much larger if the draws' gradients point in different directions.

    A deterministic network gives the same number twice.

    Args:
        model: any module that returns logits; it is in evaluation mode meanwhile.
        x: inputs.
        y: their labels.
        threat: the norm and the radius gamma.
        samples: draws of the network.
        seed: makes the draws repeatable.
    """
    first_order, per_draw = _slopes(model, x, y, threat, samples, seed)
    return first_order.mean(1), per_draw.mean(1)


def expected_loss(model: nn.Module, x: Tensor, y: Tensor, samples: int = 20, seed: int | None = None) -> Tensor:
    """E_w loss(f(x; w), y), the cross-entropy averaged over draws, [n]; arguments as above."""
    return _losses(model, x, y, samples, seed).mean(1)


def lipschitz_records(
    model: nn.Module,
    data: Examples | Splits[Any] | Mapping[str, Examples],
    attack: Perturbation,
    **options: Unpack[Options],
) -> Records:
    """The local Lipschitz value of each data set, and how much the attack really raises the loss there.

    The details of each record hold, as mean over the images with its standard error, and with its spread over seeds:
    `first_order` and `per_sample`, the two values of `local_lipschitz`; `loss`, the expected loss at the images; and
    `increase`, the exact difference that the attack makes to it (eq. 14), by the same draws, which it has not seen.

    All images are asked about by the same few draws, whose luck more images do not make good. So the standard error
    `se` has two parts, `se_images` and `se_draws`, each of which would be left if there were no end of the other.

    Args:
        model: see `evaluate`.
        data: data sets by name; of `Splits` the training and the test set.
        attack: finds the perturbation of eq. 14; its threat gives the norm and gamma.
        options: see `Evaluation`.
    """
    if isinstance(data, Splits):
        data = {"train": data.train, "test": data.test}
    elif not isinstance(data, Mapping):
        data = {data.name: data}
    records = Records()
    for name, examples in data.items():
        evaluation = Evaluation(model, examples, **options)
        plan = evaluation.planned(name, attack, kind="lipschitz")
        records += evaluation.measure([plan], _Work(evaluation, attack), _summary)
    return records


class _Work:
    def __init__(self, evaluation: Evaluation, attack: Perturbation) -> None:
        self.evaluation, self.attack = evaluation, attack

    def __call__(self, x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        x, y = self.evaluation.prepared(x, y)
        of_seeds = [self._values(x, y, seed, batch) for seed in self.evaluation.seed_list]
        return {name: torch.stack([values[name] for values in of_seeds], 1) for name in of_seeds[0]}

    def _values(self, x: Tensor, y: Tensor, seed: int, batch: Batch) -> dict[str, Tensor]:
        model, samples, draws = self.evaluation.fast, self.evaluation.samples, scoring_seed(seed)
        x_adv = self.evaluation.craft(self.attack, x, y, seed, batch)
        first_order, per_draw = _slopes(model, x, y, self.attack.threat, samples, draws)
        loss = _losses(model, x, y, samples, draws)
        increase = _losses(model, x_adv, y, samples, draws) - loss
        return {"first_order": first_order, "per_sample": per_draw, "loss": loss, "increase": increase}


def _slopes(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, samples: int, seed: int | None
) -> tuple[Tensor, Tensor]:
    """What each draw adds to the two values of `local_lipschitz`, which are the means of it, [n, samples] each.

    To the norm of the mean gradient m this is <d|m|, g> for a draw's gradient g, since |m| = <d|m|, m>.
    """
    with evaluating(model), without_parameter_gradients(model), seeded(seed, x.device):
        gradients = torch.stack([input_gradient(model, x, y, Objective()).gradient for _ in range(samples)], 1)
    with torch.enable_grad():
        mean = gradients.mean(1).requires_grad_()
        (steepest,) = torch.autograd.grad(_dual_norm(mean, threat).sum(), mean)
    along_the_mean = (gradients * steepest[:, None]).reshape(len(x), samples, -1).sum(2)
    own = _dual_norm(gradients.flatten(0, 1), threat).view(len(x), samples)
    return threat.eps * along_the_mean, threat.eps * own


@torch.no_grad()
def _losses(model: nn.Module, x: Tensor, y: Tensor, samples: int, seed: int | None) -> Tensor:
    """The cross-entropy under each draw, [n, samples]."""
    with evaluating(model), seeded(seed, x.device):
        return torch.stack([cross_entropy(model(x), y) for _ in range(samples)], 1)


def _summary(results: dict[str, Tensor]) -> list[dict[str, Any]]:
    return [{name: _mean_and_errors(values) for name, values in results.items()}]


def _mean_and_errors(values: Tensor) -> dict[str, float]:
    """The mean of [images, seeds, draws], its standard error with both its parts, and its spread over seeds."""
    values = values.double()
    images, draws = _error(values.mean((1, 2))), _error(values.mean(0).flatten())
    spread = asdict(Spread.of(values.mean((0, 2)).tolist()))
    return {**spread, "se": math.hypot(images, draws), "se_images": images, "se_draws": draws}


def _error(values: Tensor) -> float:
    """The standard error of the mean; 0 for a single value, which shows nothing of it."""
    return (values.std() / math.sqrt(len(values))).item() if len(values) > 1 else 0.0


def _dual_norm(gradient: Tensor, threat: Threat) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), _DUAL[threat.norm], dim=1)
    return norm
