"""Likelihoods p(y | x, w): categorical for classification, Gaussian for regression (eq. 7)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from advbnn.errors import ArgumentError, check_types, within


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """p(y | x, w) = softmax(f(x; w))[y]: classification, with `label_smoothing` spread evenly over all classes.

    The labels y are class numbers, [n], or probabilities, [n, classes], of mixed examples.
    """

    label_smoothing: float = 0.0
    attack_loss: ClassVar[str] = "ce"
    score_name: ClassVar[str] = "accuracy"
    better: ClassVar[int] = 1  # the sign of a better score

    def __post_init__(self) -> None:
        within("label_smoothing", self.label_smoothing, "[0, 1)")

    def nll(self, outputs: Tensor, y: Tensor, log_noise: Tensor | None = None) -> Tensor:
        """-log p(y | x, w) of each example, [n]."""
        return functional.cross_entropy(outputs, y, reduction="none", label_smoothing=self.label_smoothing)

    def kl(self, outputs: Tensor, others: Tensor, log_noise: Tensor | None = None) -> Tensor:
        """KL(p(. | outputs) || p(. | others)) of each example, [n]."""
        log_p, log_q = outputs.log_softmax(-1), others.log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1)

    def mean(self, samples: Tensor) -> Tensor:
        """The log of the mean probability over the samples [k, n, classes] (eq. 18)."""
        return samples.log_softmax(-1).logsumexp(0) - math.log(len(samples))

    def score(self, outputs: Tensor, y: Tensor) -> Tensor:
        """1 for each example that is classified correctly (as the most probable class), else 0, [n]."""
        labels = y.argmax(-1) if y.is_floating_point() else y
        return (outputs.argmax(-1) == labels).to(outputs.dtype)


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """y = f(x; w) + zeta with zeta ~ N(0, noise_std^2), the same for all inputs: regression.

    If `learned`, `noise_std` is the initial value, and its logarithm is fitted together with the weights.
    """

    noise_std: float = 1.0
    learned: bool = False
    attack_loss: ClassVar[str] = "nll"
    score_name: ClassVar[str] = "mse"
    better: ClassVar[int] = -1

    def __post_init__(self) -> None:
        check_types(self)
        within("noise_std", self.noise_std, "(0, 1e30]", "it is a standard deviation")

    def nll(self, outputs: Tensor, y: Tensor, log_noise: Tensor | None = None) -> Tensor:
        """-log p(y | x, w) of each example, [n]; `log_noise` replaces the logarithm of `noise_std`."""
        log_std = self._log_std(outputs, log_noise)
        z = (_same_shape(outputs, y) - outputs) * (-log_std).exp()
        return (z.square() / 2 + log_std + math.log(2 * math.pi) / 2).reshape(len(y), -1).sum(1)

    def kl(self, outputs: Tensor, others: Tensor, log_noise: Tensor | None = None) -> Tensor:
        """KL(p(. | outputs) || p(. | others)) of each example, [n]."""
        z = (outputs - others) * (-self._log_std(outputs, log_noise)).exp()
        return z.square().reshape(len(outputs), -1).sum(1) / 2

    def mean(self, samples: Tensor) -> Tensor:
        """The mean output over the samples [k, n, ...]."""
        return samples.mean(0)

    def score(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The squared error of each example, averaged over its outputs, [n]."""
        return (_same_shape(outputs, y) - outputs).square().reshape(len(y), -1).mean(1)

    def _log_std(self, outputs: Tensor, log_noise: Tensor | None) -> Tensor:
        if log_noise is not None:
            return log_noise
        return torch.full((), math.log(self.noise_std), dtype=outputs.dtype, device=outputs.device)


Likelihood = Categorical | Gaussian


def _same_shape(outputs: Tensor, y: Tensor) -> Tensor:
    if outputs.shape != y.shape:
        found = f"y has shape {tuple(y.shape)}, the output {tuple(outputs.shape)}"
        raise ArgumentError(f"y must have the shape of the network's output: {found}; for example y[:, None]")
    return y
