"""The loss of a network averaged over weight samples, and its gradient with respect to the input.

Only input gradients are computed, never weight gradients. Averages over weight samples need the memory of one sample:
the graph of a sample is freed before the next one is built. Those of all members of a finite support are kept for the
loss of their mean if they are small.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from advbnn.attacks.losses import Objective
from advbnn.bayes.activations import outputs_of
from advbnn.errors import ArgumentError
from advbnn.randomness import fresh_seed, seeded

Network = Callable[[Tensor], Tensor]
Probabilities = Sequence[float] | None  # None for equal ones


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
    """A `LossValue` and the gradient of its values, in the shape of the input; `exact` over all of a finite support."""

    values: Tensor
    prediction: Tensor
    gradient: Tensor
    exact: bool = False


class LogitGradients(NamedTuple):
    """The logits of n inputs, [n, classes], and the gradients of some of them: [k, n, ...] for `classes`, [n, k]."""

    logits: Tensor
    classes: Tensor
    gradients: Tensor


def mean_loss(outputs: Iterable[Tensor], y: Tensor, objective: Objective, weights: Probabilities = None) -> LossValue:
    """The objective averaged over the weight samples whose outputs are given, one at a time.

    The samples are equally probable, or have the probabilities `weights`.
    """
    mean = _Mean(log_scale=objective.classifies and objective.average != "logits")
    values: Any = 0.0
    for number, output in enumerate(outputs):
        weight = 1.0 if weights is None else weights[number]
        mean.add(output, weight)
        term = objective(output, y) if objective.average == "loss" else objective.of_sample(output, y)
        term = term if weight == 1 else weight * term
        values = values + term if number else term
    prediction, values = mean.result(), values if mean.total == 1 else values / mean.total
    return LossValue(values if objective.average == "loss" else objective(prediction, y) + values, prediction)


def input_gradient(network: Network, x: Tensor, y: Tensor, objective: Objective, eot: int = 1) -> LossGradient:
    """The objective of each example and its input gradient, estimated with `eot` fresh weight samples.

    With `average="loss"` this is the gradient of (1/K) sum_k loss(f_k(x), y): one pass over the samples. The loss of
    a mean, log (1/K) sum_k p_k or (1/K) sum_k z_k, couples the samples: a first pass, whose graphs are dropped,
    computes the mean, a second pass repeats the same samples and backpropagates the derivative at that mean, and the
    term of each sample if the objective has one. Both are exact. One pass is enough for the cross-entropy of the mean
    probability, and for networks that are not random if the activations of the first one can be kept, see `outputs_of`.
    """
    return expected_gradient([network] * eot, x, y, objective)


def expected_gradient(
    networks: Sequence[Network], x: Tensor, y: Tensor, objective: Objective, weights: Probabilities = None
) -> LossGradient:
    """As `input_gradient`, averaged over one pass of each network, with its probability in `weights`.

    With all networks of a finite support it is the gradient of the expectation itself, sum_k w_k loss(f_k(x), y).
    """
    if len(networks) == 1:
        return _gradient_of_sample(networks[0], x, y, objective)
    shares = [1.0] * len(networks) if weights is None else weights
    if objective.needs_mean:
        return _gradient_of_loss_of_mean(networks, x, y, objective, shares, random=weights is None)
    if objective.average != "loss":
        return _gradient_of_cross_entropy_of_mean(networks, x, y, objective, shares)
    mean, values, gradient = _Mean(log_scale=objective.classifies), torch.zeros(()), torch.zeros_like(x)
    for network, weight in zip(networks, shares, strict=True):
        sample = _gradient_of_sample(network, x, y, objective)
        mean.add(sample.prediction, weight)
        values, gradient = values + weight * sample.values, gradient + weight * sample.gradient
    return LossGradient(values / mean.total, mean.result(), gradient / mean.total)


def logit_gradients(network: Network, x: Tensor, choose: Callable[[Tensor], Tensor]) -> LogitGradients:
    """The gradients of the classes that `choose` selects from the logits; one backward pass for each."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        logits = network(leaf)
        _check_differentiable(logits)
        classes = choose(logits.detach())
        columns = logits.gather(1, classes).unbind(1)
        found = [torch.autograd.grad(column.sum(), leaf, retain_graph=True)[0] for column in columns]
    return LogitGradients(logits.detach(), classes, torch.stack(found))


class _Mean:
    """A running mean of outputs or, on the log scale, of the probabilities of logits; each counts by its weight."""

    def __init__(self, log_scale: bool) -> None:
        self.total, self._log_scale, self._sum = 0.0, log_scale, torch.empty(0)

    def add(self, output: Tensor, weight: float = 1.0) -> None:
        term = output.log_softmax(1) if self._log_scale else output
        if weight != 1:
            term = term + math.log(weight) if self._log_scale else weight * term
        add = torch.logaddexp if self._log_scale else torch.add
        self._sum = term if self.total == 0 else add(self._sum, term)
        self.total += weight

    def result(self) -> Tensor:
        if self.total == 1:
            return self._sum
        return self._sum - math.log(self.total) if self._log_scale else self._sum / self.total


def _gradient_of_sample(network: Network, x: Tensor, y: Tensor, objective: Objective) -> LossGradient:
    """The objective of a single pass, and its gradient."""

    def value(z: Tensor) -> LossValue:
        output = network(z)
        values = objective(output, y)
        return LossValue(values if objective.average == "loss" else values + objective.of_sample(output, y), output)

    return _differentiate(value, x)


def _gradient_of_cross_entropy_of_mean(
    networks: Sequence[Network], x: Tensor, y: Tensor, objective: Objective, weights: Sequence[float]
) -> LossGradient:
    """-log sum_k w_k p_k has the gradient sum_k c_k grad(-log p_k) with c_k = w_k p_k / sum_j w_j p_j, p_k that of y.

    It is a running mean, so that every sample is run once, and the graph of one is alive at a time.
    """
    mean, gradient = _Mean(log_scale=True), torch.zeros_like(x)
    total = torch.full((len(x),), -torch.inf, device=x.device)
    with seeded(fresh_seed(), x.device):
        for network, weight in zip(networks, weights, strict=True):
            sample = _gradient_of_sample(network, x, y, objective)
            mean.add(sample.prediction, weight)
            log_p = sample.values if objective.targeted else -sample.values
            new = log_p + math.log(weight)
            share = (new - total).sigmoid().masked_fill(new == -torch.inf, 0)  # of the samples so far
            gradient = torch.lerp(gradient, sample.gradient, share.to(x.dtype).view(-1, *[1] * (x.ndim - 1)))
            total = torch.logaddexp(total, new)
    prediction = mean.result()
    return LossGradient(objective(prediction, y), prediction, gradient)


def _gradient_of_loss_of_mean(
    networks: Sequence[Network], x: Tensor, y: Tensor, objective: Objective, weights: Sequence[float], random: bool
) -> LossGradient:
    seed, leaf = fresh_seed(), x.detach().requires_grad_()
    # passes with a gradient both times, as these may have a precision of their own
    with torch.enable_grad(), seeded(seed, x.device):
        kept = [] if random else outputs_of(networks, leaf)
        outputs = [output.detach() for output in kept] or (network(leaf).detach() for network in networks)
        values, mean = mean_loss(outputs, y, objective, weights)
    slope = _differentiate(lambda z: LossValue(objective(z, y), z), mean).gradient
    # a class with a logit of -inf has no share: exp(-inf - 0), not exp(-inf + inf)
    level = mean.masked_fill(mean == -torch.inf, 0)

    def share(output: Tensor) -> Tensor:
        if objective.average == "logits":
            share_of_mean = (output * slope).reshape(len(output), -1).sum(1)
        else:  # d(log mean p) / d(log p_k) = p_k / sum_j p_j, with every probability on the log scale
            share_of_mean = ((output.log_softmax(1) - level).exp() * slope).sum(1)
        return share_of_mean + objective.of_sample(output, y)

    gradient, pairs = torch.zeros_like(x), list(zip(networks, weights, strict=True))
    with torch.enable_grad(), seeded(seed, x.device):
        # the last one first, as a CUDA graph has the activations of its latest pass; samples in their order
        for network, weight in pairs if random else reversed(pairs):
            term = weight * share(kept.pop() if kept else network(leaf)).sum()
            _check_differentiable(term)
            gradient += torch.autograd.grad(term, leaf)[0]
    return LossGradient(values, mean, gradient / sum(weights))


def _differentiate(function: Callable[[Tensor], LossValue], x: Tensor) -> LossGradient:
    """A function of each example and its gradient at `x`, not divided by the batch size."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        values, prediction = function(leaf)
        _check_differentiable(values)
        (gradient,) = torch.autograd.grad(values, leaf, torch.ones_like(values))
    return LossGradient(values.detach(), prediction.detach(), gradient)


def _check_differentiable(outputs: Tensor) -> None:
    if not outputs.requires_grad:
        raise ArgumentError("model's output has no gradient with respect to x; use a black-box attack, e.g. Square")
