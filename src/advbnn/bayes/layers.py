"""Variational layers: a `Bayesian` around one module, with three estimators of the same posterior (section 3).

`"weight"` samples one weight for the whole batch, as the paper does. `"local"` (local reparameterization,
Kingma et al. 2015) samples the outputs instead, from the Gaussian that the weights induce on them. `"flipout"`
(Wen et al. 2018) samples one deviation from the mean and flips its signs per example. With the last two every
example of a batch has its own noise, so gradients have lower variance, for twice the arithmetic.

A network of such layers and one converted by `bayesianize` have the same posterior, the same KL and, for the same
noise, the same outputs.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.bayes.mean_field import Bayesian
from advbnn.bayes.priors import GaussianPrior, PerParameter, Prior
from advbnn.errors import ArgumentError, unknown

ESTIMATORS = ("weight", "local", "flipout")


class VariationalLayer(Bayesian):
    """A layer of torch with random weights. Positional and further keyword arguments are passed to torch's layer.

    Inside a `frozen` block the layer uses the frozen weights, whatever its estimator.
    """

    plain: ClassVar[type[nn.Module]]
    estimators: ClassVar[tuple[str, ...]] = ("weight",)

    def __init__(
        self,
        *args: Any,
        estimator: str = "weight",
        prior: Prior = GaussianPrior(std=0.05),
        init_std: PerParameter = 0.05,
        **kwargs: Any,
    ) -> None:
        if estimator not in ESTIMATORS:
            raise unknown("estimator", estimator, ESTIMATORS)
        if estimator not in self.estimators:
            raise ArgumentError(
                f"estimator={estimator!r} does not apply to {type(self).__name__}, which multiplies each channel by "
                "one weight; use estimator='weight'"
            )
        super().__init__(self.plain(*args, **kwargs), prior=prior, init_std=init_std)
        self.estimator = estimator

    def extra_repr(self) -> str:
        """The prior, the number of random weights and the estimator, for `print`."""
        return f"{super().extra_repr()}, estimator={self.estimator!r}"


class _Product(VariationalLayer, ABC):
    """A layer whose output is linear in its weights, so all three estimators apply."""

    estimators = ESTIMATORS

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for fresh noise."""
        if self.estimator == "weight" or self.frozen_sample is not None:
            output: Tensor = super().forward(x)
            return output
        mean, std = self._moments()
        return self._local(x, mean, std) if self.estimator == "local" else self._flipout(x, mean, std)

    def _moments(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        means: dict[str, Tensor] = {name: mu for name, mu, _ in self.posterior()}
        return means, {name: s.exp() for name, _, s in self.posterior()}

    def _local(self, x: Tensor, mean: dict[str, Tensor], std: dict[str, Tensor]) -> Tensor:
        """y ~ N(W_mu x, W_sigma^2 x^2), independent for every element of the output.

        For a convolution this ignores the correlation between positions that share a weight.
        """
        location = self._operation(x, mean)
        variance = self._operation(x**2, {name: value**2 for name, value in std.items()})
        # for an input of zeros the slope of the square root is infinite: no noise and no gradient there
        positive = variance > 0
        scale = torch.where(positive, torch.where(positive, variance, 1.0).sqrt(), 0.0)
        return location + scale * torch.randn_like(location)

    def _flipout(self, x: Tensor, mean: dict[str, Tensor], std: dict[str, Tensor]) -> Tensor:
        """y = W_mu x + r_out * ((sigma * eps) (r_in * x)) with signs r per example.

        Only the deviation from the mean is flipped. Flipping the sampled weight would flip the mean too.
        """
        deviation = {name: value * torch.randn_like(value) for name, value in std.items()}
        location = self._operation(x, mean)
        perturbation = self._operation(x * self._signs(x), deviation)
        return location + self._signs(location) * perturbation

    @abstractmethod
    def _operation(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """The output of torch's layer with these weights."""

    @abstractmethod
    def _signs(self, like: Tensor) -> Tensor:
        """Random signs, one for each example and channel."""


class Linear(_Product):
    """Variational `nn.Linear` (the second listing of appendix B)."""

    plain = nn.Linear

    def _operation(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return functional.linear(x, weights["weight"], weights.get("bias"))

    def _signs(self, like: Tensor) -> Tensor:
        # all positions of a sequence share the signs of their example
        shape = (like.shape[0], *[1] * (like.dim() - 2), like.shape[-1]) if like.dim() > 1 else like.shape
        return _random_signs(like, shape)


class _Convolution(_Product):
    net: nn.Conv1d | nn.Conv2d | nn.Conv3d

    def _operation(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        output: Tensor = self.net._conv_forward(x, weights["weight"], weights.get("bias"))
        return output

    def _signs(self, like: Tensor) -> Tensor:
        spatial = len(self.net.kernel_size)
        return _random_signs(like, (*like.shape[:-spatial], *[1] * spatial))


class Conv1d(_Convolution):
    """Variational `nn.Conv1d`."""

    plain = nn.Conv1d


class Conv2d(_Convolution):
    """Variational `nn.Conv2d`."""

    plain = nn.Conv2d


class Conv3d(_Convolution):
    """Variational `nn.Conv3d`."""

    plain = nn.Conv3d


class BatchNorm1d(VariationalLayer):
    """Variational `nn.BatchNorm1d`: random scale and shift, the usual running statistics."""

    plain = nn.BatchNorm1d


class BatchNorm2d(VariationalLayer):
    """Variational `nn.BatchNorm2d`: random scale and shift, the usual running statistics."""

    plain = nn.BatchNorm2d


class BatchNorm3d(VariationalLayer):
    """Variational `nn.BatchNorm3d`: random scale and shift, the usual running statistics."""

    plain = nn.BatchNorm3d


def _random_signs(like: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
    return torch.randint(0, 2, shape, device=like.device).to(like.dtype) * 2 - 1
