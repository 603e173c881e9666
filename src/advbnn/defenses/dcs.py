"""Deformable convolution with stochasticity (DCS; Ma et al., ICML 2025): a 5x5 convolution keeps two random taps."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.defenses.authors_training import MOVED_STATISTICS, RESNET18_200
from advbnn.defenses.kept_draw import KeptDraw
from advbnn.defenses.published import BETWEEN, AuthorsProtocol, Claim, Published
from advbnn.defenses.schedules import Stages
from advbnn.defenses.surgery import CIFAR10, Normalised, has_layer, replaced
from advbnn.errors import ArgumentError, positive_whole


@dataclass(frozen=True, kw_only=True)
class RandomTaps(Normalised):
    """The second convolution (in ResNet-18 the first of the first block) as a `RandomTapsConv2d`."""

    kind = "dcs"
    size: int = 5
    taps: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if positive_whole("size", self.size, most=99) % 2 == 0:
            raise ArgumentError(f"size must be an odd kernel size such as 5, got {self.size}")
        positive_whole("taps", self.taps, most=self.size**2)

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, RandomTapsConv2d):
            return net
        made = replaced(
            net, nn.Conv2d, lambda _, conv: RandomTapsConv2d(conv, self.size, self.taps), lambda found: found[1:2]
        )
        return self.normalised(made)


class RandomTapsConv2d(KeptDraw):
    """A convolution times a 0/1 mask that keeps `taps` of its places, the same for all filters and channels.

    One draw for the whole batch. For 2 of 25 there are 300 masks, each as likely. No offsets, despite the name. The
    weights are initialised as torch does for a convolution of this size.

    In training, the update has none of the taps of its attack (the source's gradient-selective adversarial training,
    which also keeps the next attack off the taps of the update). An evaluation draws anew, independently.
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
        self._draw(torch.rand(self.mask.numel(), device=self.mask.device))

    def redraw_for_update(self) -> None:
        # taps that the attack has are below all others
        self._draw(torch.rand(self.mask.numel(), device=self.mask.device) - self.mask.view(-1))

    def _draw(self, numbers: Tensor) -> None:
        """Keep the places of the largest numbers: of equally distributed ones, a uniform subset."""
        kept = numbers.topk(self.taps).indices
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
    network=RandomTaps(**CIFAR10),
    random="which 2 of 25 taps of one convolution are used",
    redrawn=BETWEEN,
    protocol=AuthorsProtocol(PGD(Threat("linf", 8 / 255), steps=10, step_size=2 / 255, random_start=True), BETWEEN),
    attack_mode="train",
    baseline="adv_batch",
    training=replace(
        RESNET18_200,
        attack=replace(RESNET18_200.attack, steps=7),
        # milestones 60 and 120, one epoch early
        schedule=Stages(epochs=(59, 60, 81), fresh_optimizer=False),
        differences=(MOVED_STATISTICS, "the source also keeps the next attack off the taps of the update"),
    ),
    claims=(
        Claim("PGD-10", 68.5, 89.2, "ResNet-18", "log in the repository, 2025-05"),
        Claim("AutoAttack", 59.0, 81.8, "ResNet-18", "another network, log in the repository"),
    ),
    differences=(
        "PGD-10 in training, the source has PGD-7",
        MOVED_STATISTICS,
        "some logs of the source score without the taps of the attack, by its option of training; these are not claims",
    ),
)
