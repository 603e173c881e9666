"""The standard deviations of a posterior, and whether the noise of one weight dominates a channel.

One row of a weight gives one channel. Normalised by batch statistics, the channel does not change when its row is
scaled. Once the noise of a single weight dominates the row, the loss of the update no longer depends on the size of
the noise, and only the KL limits it. Normalised by running statistics, the channel varies with every weight sample.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.bayes.protocol import gaussian_parameters
from advbnn.errors import ArgumentError

DOMINANT = 0.9
"""From this share on, the noise of one weight dominates its channel."""


@dataclass(frozen=True, kw_only=True)
class PosteriorScale:
    """The standard deviations of a posterior.

    Attributes:
        noise_share: the largest fraction of E[sum of w^2] over a channel that is the variance of one weight, in
            [0, 1]; 0 without a channel of several weights.
        channel: the channel with that share, such as `"features.0.weight[32]"`; `channel_std` is of that weight.
    """

    mean_std: float
    max_std: float
    noise_share: float
    channel: str
    channel_std: float


@torch.no_grad()
def posterior_scale(model: nn.Module) -> PosteriorScale:
    """The standard deviations of the random weights in every Bayesian part of `model`."""
    random = gaussian_parameters(model)
    if not random:
        raise ArgumentError("model has no Bayesian part; convert it with advbnn.bayesianize(net)")
    rows: list[Tensor] = []
    for parameter in random:
        std = parameter.log_std.double().exp()
        rows.append(torch.stack([std.sum(), std.max(), *_largest_share(parameter.mu.double(), std)]))
    # one transfer, so that the device is synchronized once
    table = torch.stack([row.to(rows[0].device) for row in rows]).cpu()
    worst = int(table[:, 2].argmax())
    return PosteriorScale(
        mean_std=float(table[:, 0].sum()) / sum(parameter.mu.numel() for parameter in random),
        max_std=float(table[:, 1].max()),
        noise_share=float(table[worst, 2]),
        channel=f"{random[worst].name}[{int(table[worst, 3])}]",
        channel_std=float(table[worst, 4]),
    )


def _largest_share(mu: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest noise share of one weight in its row, the index of the row, and the weight's standard deviation."""
    std = std.reshape(len(std), -1) if std.dim() else std.reshape(1, 1)
    if std.shape[1] < 2:
        return std.new_zeros(()), std.new_zeros(()), std.max()
    largest = std.amax(1)
    moment = std.square().sum(1) + mu.reshape(std.shape).square().sum(1)
    share, row = (largest.square() / moment.clamp_min(torch.finfo(moment.dtype).tiny)).max(0)
    return share, row.to(share.dtype), largest[row]
