"""The one place that differentiates a network with respect to its input.

Gradients are asked of the input alone, so that no weight gradient is ever computed. Random networks are averaged
over draws with the memory of one: the graph of a draw is gone before the next one is made.
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


class Answer(NamedTuple):
    """What a number of draws say of each of n inputs.

    Attributes:
        values: the objective, [n].
        prediction: the mean of the draws: the log of the mean probability, up to a constant an example; the mean
            output if that is what the objective averages, and in regression.
    """

    values: Tensor
    prediction: Tensor


class Slope(NamedTuple):
    """An answer, and the gradient of its values, shaped as the input."""

    values: Tensor
    prediction: Tensor
    gradient: Tensor


def input_gradient(network: Network, x: Tensor, y: Tensor, objective: Objective, eot: int = 1) -> Slope:
    """The objective of each example and its gradient, estimated by `eot` fresh draws of the network.

    With `average="loss"` this is the gradient of (1/K) sum_k loss(f_k(x), y): one pass over the draws. The loss of
    a mean, log (1/K) sum_k p_k or (1/K) sum_k z_k, couples the draws: a first pass without a graph finds the mean,
    a second one repeats the same draws and sends the derivative at that mean through each. Both are exact.
    """
    if eot == 1:
        return _differentiate(lambda z: _single(network(z), y, objective), x)
    if objective.average == "loss":
        return _gradient_of_mean_loss(network, x, y, objective, eot)
    return _gradient_of_loss_of_mean(network, x, y, objective, eot)


def ask(outputs: Iterable[Tensor], y: Tensor, objective: Objective) -> Answer:
    """The objective averaged over the draws in `outputs`, which are looked at one by one."""
    mean = _Mean("logits" if objective.average == "logits" or not objective.classifies else "probability")
    values: Tensor | None = None
    for output in outputs:
        mean.add(output)
        if objective.average == "loss":
            loss = objective(output, y)
            values = loss if values is None else values + loss
    prediction = mean.result()
    return Answer(objective(prediction, y) if values is None else values / mean.count, prediction)


class _Mean:
    """A running mean of outputs, or of the probabilities that they stand for, kept on the log scale."""

    def __init__(self, of: str) -> None:
        self.count, self._of, self._sum = 0, of, torch.empty(0)

    def add(self, output: Tensor) -> None:
        self.count += 1
        if self._of == "logits":
            self._sum = output if self.count == 1 else self._sum + output
        else:
            log_p = output.log_softmax(1)
            self._sum = log_p if self.count == 1 else torch.logaddexp(self._sum, log_p)

    def result(self) -> Tensor:
        return self._sum / self.count if self._of == "logits" else self._sum - math.log(self.count)


def _single(output: Tensor, y: Tensor, objective: Objective) -> Answer:
    return Answer(objective(output, y), output)


def _gradient_of_mean_loss(network: Network, x: Tensor, y: Tensor, objective: Objective, eot: int) -> Slope:
    mean = _Mean("probability" if objective.classifies else "logits")
    draw = _differentiate(lambda z: _single(network(z), y, objective), x)
    mean.add(draw.prediction)
    values, gradient = draw.values, draw.gradient
    for _ in range(eot - 1):
        draw = _differentiate(lambda z: _single(network(z), y, objective), x)
        mean.add(draw.prediction)
        values, gradient = values + draw.values, gradient + draw.gradient
    return Slope(values / eot, mean.result(), gradient / eot)


def _gradient_of_loss_of_mean(network: Network, x: Tensor, y: Tensor, objective: Objective, eot: int) -> Slope:
    # drawn from the current stream, so that a seeded attack stays repeatable
    seed = int(torch.randint(2**62, ()).item())
    with torch.no_grad(), seeded(seed, x.device):
        mean = ask((network(x) for _ in range(eot)), y, objective).prediction
    values, _, slope = _differentiate(lambda z: _single(z, y, objective), mean)
    # a class that the network rules out, with a logit of -inf, has no share: exp(-inf - 0), not exp(-inf + inf)
    level = mean.masked_fill(mean == -torch.inf, 0)

    def share(z: Tensor) -> Answer:
        output = network(z)
        if objective.average == "logits":
            return Answer((output * slope).reshape(len(z), -1).sum(1), output)
        log_p = output.log_softmax(1)
        # d(log mean p) / d(log p_k) = p_k / sum_j p_j, with no probability ever leaving the log scale
        return Answer(((log_p - level).exp() * slope).sum(1), output)

    gradient = torch.zeros_like(x)
    with seeded(seed, x.device):
        for _ in range(eot):
            gradient += _differentiate(share, x).gradient
    return Slope(values, mean, gradient / eot)


def _differentiate(function: Callable[[Tensor], Answer], x: Tensor) -> Slope:
    """A function of each example, and its gradient at `x`.

    With a weight of 1 for every value each example gets its own gradient, unscaled by the size of the batch.
    """
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        values, prediction = function(leaf)
        if not values.requires_grad:
            raise ArgumentError(
                "model's output has no gradient with respect to x: it detaches its input, runs under no_grad or "
                "rounds; attack it with a black-box attack such as Square, or give it a differentiable stand-in"
            )
        (gradient,) = torch.autograd.grad(values, leaf, torch.ones_like(values))
    return Slope(values.detach(), prediction.detach(), gradient)
