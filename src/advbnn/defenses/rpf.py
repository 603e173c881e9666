"""Random projection filters (Dong & Xu, CVPR 2023): most filters of the first convolution are random, never learned."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.defenses.authors_training import MOVED_STATISTICS, RESNET18_200
from advbnn.defenses.kept_draw import KeptDraw
from advbnn.defenses.published import BETWEEN, PGD_20, AuthorsProtocol, Published
from advbnn.defenses.surgery import CIFAR10, Normalised, has_layer, replaced
from advbnn.errors import ArgumentError, within


@dataclass(frozen=True, kw_only=True)
class RandomProjection(Normalised):
    """The first convolution with `1 - learned` of its filters random; see `RandomProjectionConv2d`."""

    kind = "rpf"
    learned: float = 0.25
    decay: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        within("learned", self.learned, "(0, 1)", "it is a fraction of the filters")
        within("decay", self.decay, "[0, 1e6]", "it is the weight decay of the learned filters")

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, RandomProjectionConv2d):
            return net

        def make(_: str, conv: nn.Conv2d) -> nn.Module:
            return RandomProjectionConv2d(conv, self.learned, self.decay)

        return self.normalised(replaced(net, nn.Conv2d, make, lambda found: found[:1]))


class RandomProjectionConv2d(KeptDraw):
    """A convolution whose last filters are N(0, 1/k^2) for a k x k kernel, one draw for the whole batch.

    A learned filter w is used as w / ((std(w) + 1e-5) k): both kinds have the same scale (the authors' code). Its own
    scale has no effect, so weight decay decides how fast it turns; the source has 1e-2 here. Learned filters start as
    those of the given convolution.
    """

    random: Tensor

    def __init__(self, conv: nn.Conv2d, learned: float = 0.25, decay: float = 1e-2) -> None:
        super().__init__()
        count = round(learned * conv.out_channels)
        if not 0 < count < conv.out_channels:
            raise ArgumentError(f"learned={learned} means {count} of {conv.out_channels} filters; keep some of both")
        self.stride, self.padding, self.dilation, self.groups = conv.stride, conv.padding, conv.dilation, conv.groups
        self.weight = nn.Parameter(conv.weight.detach()[:count].clone())
        self.bias = None if conv.bias is None else nn.Parameter(conv.bias.detach().clone())
        self.register_buffer("random", torch.empty_like(conv.weight.detach()[count:]), persistent=False)
        self.decays = {"weight": decay}
        self.size = math.sqrt(math.prod(conv.kernel_size))
        self.resample()

    def redraw(self) -> None:
        self.random.normal_(std=1 / self.size)

    def forward(self, x: Tensor) -> Tensor:
        std = self.weight.flatten(1).std(1).view(-1, 1, 1, 1)
        filters = torch.cat([self.weight / ((std + 1e-5) * self.size), self.random])
        return functional.conv2d(x, filters, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        return f"learned={len(self.weight)}, random={len(self.random)}"


PUBLISHED = Published(
    name="rpf",
    title="Random projection filters",
    paper="Dong & Xu, Adversarial Robustness via Random Projection Filters",
    venue="CVPR 2023",
    code="https://github.com/UniSerj/Random-Projection-Filters",
    network=RandomProjection(**CIFAR10),
    random="three quarters of the filters of the first convolution",
    redrawn=BETWEEN,
    protocol=AuthorsProtocol(PGD_20, BETWEEN),
    attack_mode="train",
    baseline="adv_batch",
    training=RESNET18_200,
    differences=(MOVED_STATISTICS, "the repository states no accuracy; those of the paper could not be confirmed"),
)
