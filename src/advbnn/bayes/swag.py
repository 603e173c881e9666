"""SWAG: a Gaussian posterior from the moments of the weights during training (Maddox et al., 2019).

The weights w_1, ..., w_n, collected along the end of any training, give a mean, a diagonal and a low-rank covariance:

    swag = SWAG(net, rank=20)
    for ...:                        # an ordinary training of `net`
        if late enough: swag.collect()
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.functional import module_tree, network_with
from advbnn.bayes.protocol import RandomNetwork, Weights
from advbnn.bayes.sample_bank import SampleBank
from advbnn.bayes.sampling import split_like
from advbnn.errors import ArgumentError, positive_whole, whole, within
from advbnn.randomness import seeded


class SWAG(RandomNetwork):
    """A network whose weights are sampled from the Gaussian of the collected weights,

        w = mean + sqrt(scale) * (sqrt(diagonal / 2) * z1 + D z2 / sqrt(2 (K - 1))),    z1, z2 ~ N(0, I),

    with the mean and the variance (`diagonal`) of all n collected weights, and a matrix D of the last K <= `rank`
    deviations w_i - mean_i, where mean_i is the mean of the first i. `scale` multiplies the covariance; at 0 every
    sample is the mean.

    All parameters of `net` are random. Its buffers are not: a sample runs with the running statistics of `net`. These
    must be those of the mean weights, so call `load_mean` after the last `collect` and estimate the statistics for
    them. A sample far from the mean has other statistics; `bank` estimates them anew for each of a few samples.

    `net` keeps its own weights: the current state of training. The moments are buffers, in float32 at least.
    """

    def __init__(self, net: nn.Module, rank: int = 20, scale: float = 1.0) -> None:
        super().__init__(net)
        whole("rank", rank, 2)  # the first deviation is zero
        within("scale", scale, "[0, inf)", "1 is SWAG's own covariance")
        parameters = dict(net.named_parameters())
        if not parameters:
            raise ArgumentError("net has no parameters, so nothing of it can be random")
        self.scale, self.collected = float(scale), 0
        self.mean, self.squares = (module_tree((n, _zeros(p)) for n, p in parameters.items()) for _ in range(2))
        self.deviations = module_tree((n, _zeros(p, rank)) for n, p in parameters.items())
        self.train(net.training)

    @property
    def rank(self) -> int:
        """The largest number of deviations that are kept."""
        return len(next(self.deviations.buffers()))

    @torch.no_grad()
    def collect(self) -> None:
        """Add the current weights of `net` to the moments."""
        weights = dict(self.net.named_parameters())
        means, squares, deviations = (dict(t.named_buffers()) for t in (self.mean, self.squares, self.deviations))
        row, self.collected = self.collected % self.rank, self.collected + 1
        for name, weight in weights.items():
            # Welford's update: no difference of large squares
            before = weight.to(means[name]) - means[name]
            means[name] += before / self.collected
            deviations[name][row] = weight.to(means[name]) - means[name]
            squares[name] += before * deviations[name][row]

    def variances(self) -> Weights:
        """The diagonal: the variance of every collected weight, by name."""
        return {name: total / max(self.collected, 1) for name, total in self.squares.named_buffers()}

    def sample(self) -> Weights:
        if self.collected < 2:
            raise ArgumentError(f"SWAG needs two collected states or more, has {self.collected}; call collect() first")
        weights = dict(self.net.named_parameters())
        means, squares = (list(tree.buffers()) for tree in (self.mean, self.squares))
        deviations = list(self.deviations.buffers())
        columns = min(self.collected, self.rank)
        diagonal = torch.randn(sum(mean.numel() for mean in means), dtype=torch.float32, device=means[0].device)
        low_rank = torch.randn(columns, dtype=torch.float32, device=means[0].device) / math.sqrt(2 * (columns - 1))
        pieces, root = split_like(diagonal, means), math.sqrt(self.scale)
        found = {}
        for name, mean, square, deviation, z in zip(weights, means, squares, deviations, pieces, strict=True):
            z1, z2 = z.to(mean), low_rank.to(mean)
            change = (square / (2 * self.collected)).sqrt() * z1 + torch.tensordot(z2, deviation[:columns], 1)
            found[name] = (mean + root * change).to(weights[name].dtype)
        return found

    @property
    def posterior_mean(self) -> nn.Module | None:
        """A network with the mean weights and the buffers of `net`; None before the first `collect`."""
        return network_with(self.net, self._means()) if self.collected else None

    @torch.no_grad()
    def load_mean(self) -> None:
        """Give `net` the mean weights; its running statistics must then be estimated for them."""
        if not self.collected:
            raise ArgumentError("SWAG has collected no weights yet; call collect() during training")
        for name, weight in self._means().items():
            self.net.get_parameter(name).copy_(weight)

    @torch.no_grad()
    def bank(self, samples: int, refresh: Callable[[nn.Module], None] | None = None, seed: int = 0) -> SampleBank:
        """A bank of weight samples, each with its own running statistics: a posterior with finite support.

        `refresh(net)` estimates the statistics of a sample anew, by a pass over training images in evaluation's
        preprocessing: `lambda net: refresh_batchnorm(net, batches)` of `advbnn.training.averaging`. When None, all
        samples have the statistics of `net`. `net` is left as it was.
        """
        bank, device = SampleBank(self.net), next(self.mean.buffers()).device
        for number in range(positive_whole("samples", samples)):
            with seeded(seed + number, device):
                drawn = self.sample()
            buffers = {name: buffer.clone() for name, buffer in self.net.named_buffers()}
            net = network_with(self.net, {**drawn, **buffers})
            if refresh is not None:
                refresh(net)
            bank.add(net)
        return bank

    def extra_repr(self) -> str:
        return f"rank={self.rank}, scale={self.scale:g}, collected={self.collected}"

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.collected, self.scale], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        collected, self.scale = state.tolist()
        self.collected = int(collected)

    def _means(self) -> Mapping[str, Tensor]:
        weights = dict(self.net.named_parameters())
        return {name: mean.to(weights[name].dtype) for name, mean in self.mean.named_buffers()}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # room for as many deviations as were saved
        rank = self.rank
        for name, mean in self.mean.named_buffers():
            saved = state_dict.get(f"{prefix}deviations.{name}")
            if saved is not None and len(saved) != rank:
                path, _, leaf = name.rpartition(".")
                self.deviations.get_submodule(path)._buffers[leaf] = mean.new_zeros(len(saved), *mean.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _zeros(parameter: Tensor, *rows: int) -> Tensor:
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    return torch.zeros(*rows, *parameter.shape, dtype=dtype, device=parameter.device)
