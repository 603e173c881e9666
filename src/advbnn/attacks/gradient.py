"""The loss of a network averaged over weight samples, and its gradient with respect to the input.

Only input gradients are computed, never weight gradients. Averages over weight samples need the memory of one sample:
the graph of a sample is freed before the next one is built.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from advbnn.attacks.losses import Objective
from advbnn.errors import ArgumentError
from advbnn.randomness import seeded

Network = Callable[[Tensor], Tensor]


class LossValue(NamedTuple):
    """The loss of n inputs, averaged over weight samples.

    Attributes:
        values: the objective, [n].
        prediction: the log of the mean probability, up to a constant per example; the mean output if the objective
            averages logits, and in regression.
    """

    values: Tensor
    prediction: Tensor


class LossGradient(NamedTuple):
    """A `LossValue` and the gradient of its values, in the shape of the input."""

    values: Tensor
    prediction: Tensor
    gradient: Tensor


def mean_loss(outputs: Iterable[Tensor], y: Tensor, objective: Objective) -> LossValue:
    """The objective averaged over the weight samples whose outputs are given, one at a time."""
    mean = _Mean(log_scale=objective.classifies and objective.average != "logits")
    values = torch.zeros(())
    for output in outputs:
        mean.add(output)
        values = values + (objective(output, y) if objective.average == "loss" else objective.of_sample(output, y))
    prediction, values = mean.result(), values / mean.count
    return LossValue(values if objective.average == "loss" else objective(prediction, y) + values, prediction)


def input_gradient(network: Network, x: Tensor, y: Tensor, objective: Objective, eot: int = 1) -> LossGradient:
    """The objective of each example and its input gradient, estimated with `eot` fresh weight samples.

    With `average="loss"` this is the gradient of (1/K) sum_k loss(f_k(x), y): one pass over the samples. The loss of
    a mean, log (1/K) sum_k p_k or (1/K) sum_k z_k, couples the samples: a first pass without a graph computes the
    mean, a second pass repeats the same samples and backpropagates the derivative at that mean, and the term of each
    sample if the objective has one. Both are exact.
    """

    def single(z: Tensor) -> LossValue:
        output = network(z)
        values = objective(output, y)
        return LossValue(values if objective.average == "loss" else values + objective.of_sample(output, y), output)

    if eot == 1:
        return _differentiate(single, x)
    if objective.average != "loss":
        return _gradient_of_loss_of_mean(network, x, y, objective, eot)
    mean, values, gradient = _Mean(log_scale=objective.classifies), torch.zeros(()), torch.zeros_like(x)
    for _ in range(eot):
        sample = _differentiate(single, x)
        mean.add(sample.prediction)
        values, gradient = values + sample.values, gradient + sample.gradient
    return LossGradient(values / eot, mean.result(), gradient / eot)


class _Mean:
    """A running mean of outputs or, on the log scale, of the probabilities of logits."""

    def __init__(self, log_scale: bool) -> None:
        self.count, self._log_scale, self._sum = 0, log_scale, torch.empty(0)

    def add(self, output: Tensor) -> None:
        self.count += 1
        term = output.log_softmax(1) if self._log_scale else output
        add = torch.logaddexp if self._log_scale else torch.add
        self._sum = term if self.count == 1 else add(self._sum, term)

    def result(self) -> Tensor:
        return self._sum - math.log(self.count) if self._log_scale else self._sum / self.count


def _gradient_of_loss_of_mean(network: Network, x: Tensor, y: Tensor, objective: Objective, eot: int) -> LossGradient:
    # from the current stream, so that a seeded attack stays reproducible
    seed = int(torch.randint(2**62, ()).item())
    with torch.no_grad(), seeded(seed, x.device):
        values, mean = mean_loss((network(x) for _ in range(eot)), y, objective)
    slope = _differentiate(lambda z: LossValue(objective(z, y), z), mean).gradient
    # a class with a logit of -inf has no share: exp(-inf - 0), not exp(-inf + inf)
    level = mean.masked_fill(mean == -torch.inf, 0)

    def share(z: Tensor) -> LossValue:
        output = network(z)
        if objective.average == "logits":
            share_of_mean = (output * slope).reshape(len(z), -1).sum(1)
        else:  # d(log mean p) / d(log p_k) = p_k / sum_j p_j, with every probability on the log scale
            share_of_mean = ((output.log_softmax(1) - level).exp() * slope).sum(1)
        return LossValue(share_of_mean + objective.of_sample(output, y), output)

    gradient = torch.zeros_like(x)
    with seeded(seed, x.device):
        for _ in range(eot):
            gradient += _differentiate(share, x).gradient
    return LossGradient(values, mean, gradient / eot)


def _differentiate(function: Callable[[Tensor], LossValue], x: Tensor) -> LossGradient:
    """A function of each example and its gradient at `x`, not divided by the batch size."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        values, prediction = function(leaf)
        if not values.requires_grad:
            raise ArgumentError("model's output has no gradient with respect to x; use a black-box attack, e.g. Square")
        (gradient,) = torch.autograd.grad(values, leaf, torch.ones_like(values))
    return LossGradient(values.detach(), prediction.detach(), gradient)
