"""The local Lipschitz value of the loss, and the increase that an attack reaches (eq. 14 to 16)."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from advbnn.attacks.gradient import input_gradient
from advbnn.attacks.losses import Objective, cross_entropy
from advbnn.attacks.threat import Threat
from advbnn.bayes.outputs import passes_needed
from advbnn.data.imageset import Examples
from advbnn.data.splits import Splits
from advbnn.evaluation.accuracy import Evaluation
from advbnn.evaluation.batchwise import Batch
from advbnn.evaluation.checks import Perturbation
from advbnn.evaluation.options import Options
from advbnn.evaluation.records import Records, Spread
from advbnn.modules import evaluating, without_parameter_gradients
from advbnn.randomness import scoring_seed, seeded, with_fresh_state

_DUAL = {"linf": 1.0, "l2": 2.0, "l1": math.inf}


def local_lipschitz(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, samples: int = 20, seed: int | None = None
) -> tuple[Tensor, Tensor]:
    """gamma * |grad_x loss|, the largest first-order increase of the loss within the threat's ball (eq. 16).

    The norm is the dual of the threat's: for linf the l1 norm. A random network has two such values, [n] each:

    - gamma * |E_w grad_x loss|: the increase of the expected loss, for one perturbation for all weight samples. With
      few samples it is biased upwards by the noise left in the mean gradient.
    - gamma * E_w |grad_x loss|: the mean increase if each weight sample is known. It is at least as large, and much
      larger if the gradients of the samples are nearly uncorrelated.

    Both are equal for a deterministic network. The model returns logits and runs in evaluation mode; the seed makes the
    weight samples reproducible.
    """
    first_order, per_sample = _slopes(model, x, y, threat, samples, seed)
    return first_order.mean(1), per_sample.mean(1)


def lipschitz_records(
    model: nn.Module,
    data: Examples | Splits[Any] | Mapping[str, Examples],
    attack: Perturbation,
    **options: Unpack[Options],
) -> Records:
    """The local Lipschitz value of each data set, and the increase of the loss under the attack.

    The details of each record hold the mean over the images, its standard error and its spread over seeds, of:
    `first_order` and `per_sample`, the two values of `local_lipschitz`; `loss`, the expected loss; and `increase`, its
    exact increase under the attack (eq. 14), on weight samples that the attack has not seen.

    All images share the same few weight samples. So the standard error `se` has two parts: `se_images` from the choice
    of images, and `se_samples` from the weight samples, which more images do not reduce.

    `data` may be data sets by name; of `Splits` the training and the test set are used. The attack crafts the
    perturbation of eq. 14, and its threat gives the norm and gamma. The other arguments are as for `evaluate`.
    """
    if isinstance(data, Splits):
        data = {"train": data.train, "test": data.test}
    elif not isinstance(data, Mapping):
        data = {data.name: data}
    records = Records()
    for name, examples in data.items():
        evaluation = Evaluation(model, examples, **options)
        plan = evaluation.planned(name, attack, kind="lipschitz")
        records += evaluation.measure([plan], partial(_work, evaluation, attack), _summary)
    return records


def _work(evaluation: Evaluation, attack: Perturbation, x: Tensor, y: Tensor, batch: Batch) -> dict[str, Tensor]:
    model, samples, of_seeds = evaluation.fast, evaluation.samples, []
    for seed in evaluation.seed_list:
        x_adv, weights_seed = evaluation.craft(attack, x, y, seed, batch), scoring_seed(seed)
        first_order, per_sample = _slopes(model, x, y, attack.threat, samples, weights_seed)
        loss = _losses(model, x, y, samples, weights_seed)
        increase = _losses(model, x_adv, y, samples, weights_seed) - loss
        of_seeds.append((first_order, per_sample, loss, increase))
    names = ("first_order", "per_sample", "loss", "increase")
    return {name: torch.stack(found, 1) for name, found in zip(names, zip(*of_seeds, strict=True), strict=True)}


def _slopes(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, samples: int, seed: int | None
) -> tuple[Tensor, Tensor]:
    """The contribution of each weight sample to the two values of `local_lipschitz`, [n, samples] each.

    The values are the means of these. For the norm of the mean gradient m a sample with gradient g contributes
    <d|m|, g>, since |m| = <d|m|, m>.
    """
    model = with_fresh_state(model)
    with evaluating(model), without_parameter_gradients(model), seeded(seed, x.device):
        passes = passes_needed(model, x, samples)
        gradients = torch.stack([input_gradient(model, x, y, Objective()).gradient for _ in range(passes)], 1)
    gradients = gradients.expand(-1, samples, *gradients.shape[2:]) if passes < samples else gradients
    with torch.enable_grad():
        mean = gradients.mean(1).requires_grad_()
        (steepest,) = torch.autograd.grad(_dual_norm(mean, threat).sum(), mean)
    along_the_mean = (gradients * steepest[:, None]).reshape(len(x), samples, -1).sum(2)
    own = _dual_norm(gradients.flatten(0, 1), threat).view(len(x), samples)
    return threat.eps * along_the_mean, threat.eps * own


@torch.no_grad()
def _losses(model: nn.Module, x: Tensor, y: Tensor, samples: int, seed: int | None) -> Tensor:
    """The cross-entropy under each weight sample, [n, samples]."""
    model = with_fresh_state(model)
    with evaluating(model), seeded(seed, x.device):
        passes = passes_needed(model, x, samples)
        return torch.stack([cross_entropy(model(x), y) for _ in range(passes)], 1).expand(-1, samples)


def _summary(results: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    return [{name: _mean_and_errors(values) for name, values in results.items()}]


def _mean_and_errors(values: Tensor) -> dict[str, float]:
    """The mean of [images, seeds, samples], its standard error and both parts of it, and its spread over seeds."""
    values = values.double()
    images, samples = _error(values.mean((1, 2))), _error(values.mean(0).flatten())
    spread = asdict(Spread.of(values.mean((0, 2)).tolist()))
    return {**spread, "se": math.hypot(images, samples), "se_images": images, "se_samples": samples}


def _error(values: Tensor) -> float:
    """The standard error of the mean; 0 for a single value."""
    return (values.std() / math.sqrt(len(values))).item() if len(values) > 1 else 0.0


def _dual_norm(gradient: Tensor, threat: Threat) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), _DUAL[threat.norm], dim=1)
    return norm
