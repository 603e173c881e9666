"""How the standard deviations of a posterior lie, and whether one of them has taken a channel over.

A channel is what one row of a weight makes. Divided by the statistics of the batch, it does not change when all that
goes into it grows by a factor; so once the noise of a single weight is nearly all of it, the update no longer feels how
large that noise is, and nothing but the divergence holds it back. Divided by running statistics, the same channel is
another one in every draw.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.bayes.protocol import gaussian_parameters
from advbnn.errors import ArgumentError

TAKEN_OVER = 0.9
"""The share of a channel from which on the noise of one weight counts as having taken it over."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """What a training logs of its posterior.

    Attributes:
        mean: of all standard deviations.
        largest: of all standard deviations.
        share: the largest part that the variance of one weight has in E[sum of w^2] over its channel, in [0, 1];
            0 where there is no channel of several weights.
        where: the channel with that share, such as `"features.0.weight[32]"`.
        std: the standard deviation of that weight.
    """

    mean: float
    largest: float
    share: float
    where: str
    std: float


@torch.no_grad()
def spread_of(model: nn.Module) -> Spread:
    """The spread of the random weights of every Bayesian part of `model`.

    Raises:
        ValueError: there is no such part.
    """
    found: list[Tensor] = []
    names: list[str] = []
    weights = 0
    for parameter in gaussian_parameters(model):
        std = parameter.log_std.double().exp()
        names.append(parameter.name)
        weights += std.numel()
        found.append(torch.stack([std.sum(), std.max(), *_largest_share(parameter.mu.double(), std)]))
    if not found:
        raise ArgumentError("model has no Bayesian part, so no spread; convert it with advbnn.bayesianize(net)")
    # in one piece, so that the device is waited for once
    table = torch.stack([row.to(found[0].device) for row in found]).cpu()
    worst = int(table[:, 2].argmax())
    return Spread(
        mean=float(table[:, 0].sum()) / weights,
        largest=float(table[:, 1].max()),
        share=float(table[worst, 2]),
        where=f"{names[worst]}[{int(table[worst, 3])}]",
        std=float(table[worst, 4]),
    )


def _largest_share(mu: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest share of one weight in its row, the number of the row, and the weight's standard deviation."""
    std = std.reshape(len(std), -1) if std.dim() else std.reshape(1, 1)
    if std.shape[1] < 2:
        return std.new_zeros(()), std.new_zeros(()), std.max()
    largest = std.amax(1)
    moment = std.square().sum(1) + mu.reshape(std.shape).square().sum(1)
    share, row = (largest.square() / moment.clamp_min(torch.finfo(moment.dtype).tiny)).max(0)
    return share, row.to(share.dtype), largest[row]
