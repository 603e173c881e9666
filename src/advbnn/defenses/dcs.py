"""Deformable convolution with stochasticity (DCS; Ma et al., ICML 2025): a 5x5 convolution keeps two random taps."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.defenses.kept_draw import KeptDraw
from advbnn.defenses.published import BETWEEN, AuthorsProtocol, Claim, Published
from advbnn.defenses.surgery import has_layer, replaced
from advbnn.errors import ArgumentError, positive_whole


@dataclass(frozen=True, kw_only=True)
class RandomTaps:
    """The second convolution (in ResNet-18 the first of the first block) as a `RandomTapsConv2d`."""

    kind = "dcs"
    size: int = 5
    taps: int = 2

    def __post_init__(self) -> None:
        if positive_whole("size", self.size, most=99) % 2 == 0:
            raise ArgumentError(f"size must be an odd kernel size such as 5, got {self.size}")
        positive_whole("taps", self.taps, most=self.size**2)

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, RandomTapsConv2d):
            return net
        return replaced(
            net, nn.Conv2d, lambda _, conv: RandomTapsConv2d(conv, self.size, self.taps), lambda found: found[1:2]
        )


class RandomTapsConv2d(KeptDraw):
    """A convolution times a 0/1 mask that keeps `taps` of its places, the same for all filters and channels.

    One draw for the whole batch. For 2 of 25 there are 300 masks, each as likely. No offsets, despite the name. The
    weights are initialised as torch does for a convolution of this size.
    """

    mask: Tensor

    def __init__(self, conv: nn.Conv2d, size: int = 5, taps: int = 2) -> None:
        super().__init__()
        if conv.groups != 1 or isinstance(conv.padding, str):
            raise ArgumentError(f"net's second convolution must have no groups and numbers as padding, got {conv}")
        bias = conv.bias is not None
        new = nn.Conv2d(conv.in_channels, conv.out_channels, size, padding=size // 2, bias=bias)
        new.stride = conv.stride
        self.conv, self.taps = new.to(conv.weight.device, conv.weight.dtype), taps
        self.register_buffer("mask", torch.zeros_like(self.conv.weight[0, 0]), persistent=False)
        self.resample()

    def redraw(self) -> None:
        # the places of the largest of equally distributed numbers: a uniform subset
        kept = torch.rand(self.mask.numel(), device=self.mask.device).topk(self.taps).indices
        self.mask.zero_().view(-1).index_fill_(0, kept, 1)

    def forward(self, x: Tensor) -> Tensor:
        conv = self.conv
        return functional.conv2d(x, conv.weight * self.mask, conv.bias, conv.stride, conv.padding)

    def extra_repr(self) -> str:
        return f"taps={self.taps}"


PUBLISHED = Published(
    name="dcs",
    title="Deformable convolution with stochasticity",
    paper="Ma et al., Adversarial Robustness via Deformable Convolution with Stochasticity",
    venue="ICML 2025",
    code="https://github.com/theSleepyPig/Deformable_Convolution_with_Stochasticity",
    network=RandomTaps(),
    random="which 2 of 25 taps of one convolution are used",
    redrawn=BETWEEN,
    protocol=AuthorsProtocol(PGD(Threat("linf", 8 / 255), steps=10, step_size=2 / 255, random_start=True), BETWEEN),
    claims=(
        Claim("PGD-10", 68.5, 89.2, "ResNet-18", "log in the repository, 2025-05"),
        Claim("AutoAttack", 59.0, 81.8, "ResNet-18", "another network, log in the repository"),
    ),
    differences=("the source's option that excludes the taps of the last two draws is left out: its score is invalid",),
)
