"""Constrained trainable random weight (Ma et al., NeurIPS 2023): the input is multiplied by learned random weights."""

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.defenses.kept_draw import KeptDraw
from advbnn.defenses.published import BETWEEN, PGD_20, AuthorsProtocol, Claim, Published
from advbnn.defenses.surgery import has_layer
from advbnn.errors import check_types, positive_whole, within


@dataclass(frozen=True, kw_only=True)
class RandomWeightInput:
    """The network behind a `RandomWeight` on its normalised input (position 0 of the source).

    `mean` and `std` normalise all channels; the source has numbers for each, within 6 % of these on CIFAR-10.
    """

    kind = "ctrw"
    channels: int = 3
    image_size: int = 32
    bound: int = 2048
    mean: float = 0.473
    std: float = 0.251

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("channels", "image_size", "bound"):
            positive_whole(name, getattr(self, name))
        within("mean", self.mean, "[-1e6, 1e6]", "0 and std=1 leave the input as it is")
        within("std", self.std, "(0, 1e6]", "1 and mean=0 leave the input as it is")

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, RandomWeight):
            return net
        shape = (self.channels, self.image_size, self.image_size)
        weight = RandomWeight(shape, self.bound, self.mean, self.std).train(net.training)
        return nn.Sequential(OrderedDict(random_weight=weight, net=net))


class RandomWeight(KeptDraw):
    """z * (mu + sigma * eps) with z = (x - mean) / std, eps ~ N(0, 1) of the shape of one image, one draw for a batch.

    Without the normalisation, the noise would be larger than the contrast of an image.

    mu and sigma start at 1. Cross-entropy alone drives sigma to 0, so at each draw, where min sigma is below
    b = bound / numel, (b - min sigma) is added to every sigma below b; only in training is that kept. The paper's upper
    bound is not in the authors' code, and not here.
    """

    eps: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, shape: tuple[int, ...], bound: int = 2048, mean: float = 0.0, std: float = 1.0) -> None:
        super().__init__()
        self.lowest = bound / math.prod(shape)
        self.mu, self.sigma = (nn.Parameter(torch.ones(1, *shape)) for _ in range(2))
        self.register_buffer("eps", torch.zeros(1, *shape), persistent=False)
        # stored with the weights, which were trained for them
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))
        self.resample()

    def redraw(self) -> None:
        if self.training:  # an evaluation must not change the weights
            self.sigma.copy_(self._bounded())
        self.eps.normal_()

    def forward(self, x: Tensor) -> Tensor:
        sigma = self.sigma if self.training else self._bounded()
        return (x - self.mean) / self.std * (self.mu + sigma * self.eps)

    def _bounded(self) -> Tensor:
        lift = (self.lowest - self.sigma.amin()).clamp_min(0)
        return self.sigma + torch.where(self.sigma < self.lowest, lift, torch.zeros_like(lift))


PUBLISHED = Published(
    name="ctrw",
    title="Constrained trainable random weight",
    paper="Ma, Dong & Xu, Adversarial Robustness through Random Weight Sampling",
    venue="NeurIPS 2023",
    code="https://github.com/Xz-As/Constrained_Random_Adv",
    network=RandomWeightInput(),
    random="weights that multiply the pixels of the input",
    redrawn=BETWEEN,
    protocol=AuthorsProtocol(PGD_20, BETWEEN),
    claims=(
        Claim("PGD-20", 68.7, 83.5, "ResNet-18", "log in the repository, commit 8625b86"),
        Claim("AutoAttack", 73.9, 83.5, "ResNet-18", "log in the repository, commit 8625b86"),
    ),
    differences=("the paper's upper bound on sigma is not in the source",),
)
