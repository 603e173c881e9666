"""Variational layers: a `Bayesian` around one module, with three estimators of the same posterior (section 3).

`"weight"` samples one weight for the whole batch, as the paper does. `"local"` (local reparameterization,
Kingma et al. 2015) samples the outputs instead, from the Gaussian that the weights induce on them. `"flipout"`
(Wen et al. 2018) samples one deviation from the mean and flips its signs per example. With the last two every
example of a batch has its own noise, so gradients have lower variance, for twice the arithmetic.

A network of such layers and one converted by `bayesianize` have the same posterior, the same KL and, for the same
noise, the same outputs.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from advbnn.bayes.mean_field import Bayesian
from advbnn.bayes.priors import GaussianPrior, PerParameter, Prior
from advbnn.bayes.protocol import Weights
from advbnn.errors import one_of


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
        prior: Prior = GaussianPrior(),
        init_std: PerParameter = 0.05,
        **kwargs: Any,
    ) -> None:
        one_of(f"{type(self).__name__}: estimator", estimator, self.estimators)
        super().__init__(self.plain(*args, **kwargs), prior=prior, init_std=init_std)
        self.estimator = estimator

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, estimator={self.estimator!r}"


class _Product(VariationalLayer):
    """A layer whose output is linear in its weights, so all three estimators apply."""

    estimators = ("weight", "local", "flipout")

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for fresh noise."""
        if self.estimator == "weight" or self.frozen_sample is not None:
            output: Tensor = super().forward(x)
            return output
        location: Tensor = self.run({name: mu for name, mu, _ in self.posterior()}, x)
        std = {name: s.exp() for name, _, s in self.posterior()}
        return self._local(x, location, std) if self.estimator == "local" else self._flipout(x, location, std)

    def _local(self, x: Tensor, location: Tensor, std: Weights) -> Tensor:
        """y ~ N(W_mu x, W_sigma^2 x^2), independent for every element of the output.

        For a convolution this ignores the correlation between positions that share a weight.
        """
        variance = self.run({name: value**2 for name, value in std.items()}, x**2)
        # for an input of zeros the slope of the square root is infinite: no noise and no gradient there
        positive = variance > 0
        scale = torch.where(positive, torch.where(positive, variance, 1.0).sqrt(), 0.0)
        return location + scale * torch.randn_like(location)

    def _flipout(self, x: Tensor, location: Tensor, std: Weights) -> Tensor:
        """y = W_mu x + r_out * ((sigma * eps) (r_in * x)) with signs r per example.

        Only the deviation from the mean is flipped. Flipping the sampled weight would flip the mean too.
        """
        deviation = {name: value * torch.randn_like(value) for name, value in std.items()}
        perturbation: Tensor = self.run(deviation, x * self._signs(x))
        return location + self._signs(location) * perturbation

    def _signs(self, like: Tensor) -> Tensor:
        """Random signs per example and channel; all positions of an image or a sequence share them."""
        spatial = len(getattr(self.net, "kernel_size", ()))
        shape = list(like.shape)
        for position in range(-spatial, 0) if spatial else range(1, like.dim() - 1):
            shape[position] = 1
        return torch.randint(0, 2, shape, device=like.device).to(like.dtype) * 2 - 1


class Linear(_Product):
    """Variational `nn.Linear` (the second listing of appendix B)."""

    plain = nn.Linear


class Conv1d(_Product):
    """Variational `nn.Conv1d`."""

    plain = nn.Conv1d


class Conv2d(_Product):
    """Variational `nn.Conv2d`."""

    plain = nn.Conv2d


class Conv3d(_Product):
    """Variational `nn.Conv3d`."""

    plain = nn.Conv3d


class BatchNorm1d(VariationalLayer):
    """Variational `nn.BatchNorm1d`: random scale and shift, the usual running statistics."""

    plain = nn.BatchNorm1d


class BatchNorm2d(VariationalLayer):
    """Variational `nn.BatchNorm2d`."""

    plain = nn.BatchNorm2d


class BatchNorm3d(VariationalLayer):
    """Variational `nn.BatchNorm3d`."""

    plain = nn.BatchNorm3d
