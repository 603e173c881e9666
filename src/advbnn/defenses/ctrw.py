"""Constrained trainable random weight (Ma et al., NeurIPS 2023): the input is multiplied by learned random weights."""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.defenses.authors_training import MOVED_STATISTICS, RESNET18_200
from advbnn.defenses.kept_draw import KeptDraw
from advbnn.defenses.published import BETWEEN, PGD_20, AuthorsProtocol, Claim, Published
from advbnn.defenses.surgery import CIFAR10, Normalised, has_layer
from advbnn.errors import positive_whole, within


@dataclass(frozen=True, kw_only=True)
class RandomWeightInput(Normalised):
    """The network behind a `RandomWeight` on its normalised input (position 0 of the source).

    The source bounds the sum of all sigma by 2048 for 3 x 32 x 32 pixels; `lowest` is the bound of one.
    """

    kind = "ctrw"
    channels: int = 3
    image_size: int = 32
    lowest: float = 2048 / 3072

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("channels", "image_size"):
            positive_whole(name, getattr(self, name))
        within("lowest", self.lowest, "[0, 1e6]", "it is a standard deviation")

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, RandomWeight):
            return net
        weight = RandomWeight((self.channels, self.image_size, self.image_size), self.lowest).train(net.training)
        return self.normalised(nn.Sequential(OrderedDict(random_weight=weight, net=net)))


class RandomWeight(KeptDraw):
    """x * (mu + sigma * eps), eps ~ N(0, 1) of the shape of one image, one draw for the whole batch.

    mu and sigma start at 1. Cross-entropy alone drives sigma to 0, so at each draw, where min sigma is below `lowest`,
    (lowest - min sigma) is added to every sigma below; only in training is that kept. The paper's upper bound is not in
    the authors' code, and not here.
    """

    eps: Tensor

    def __init__(self, shape: tuple[int, ...], lowest: float = 2048 / 3072) -> None:
        super().__init__()
        self.lowest = lowest
        self.mu, self.sigma = (nn.Parameter(torch.ones(1, *shape)) for _ in range(2))
        self.register_buffer("eps", torch.zeros(1, *shape), persistent=False)
        self.resample()

    def redraw(self) -> None:
        if self.training:  # an evaluation must not change the weights
            self.sigma.copy_(self._bounded())
        self.eps.normal_()

    def forward(self, x: Tensor) -> Tensor:
        sigma = self.sigma if self.training else self._bounded()
        return x * (self.mu + sigma * self.eps)

    def _bounded(self) -> Tensor:
        lift = (self.lowest - self.sigma.amin()).clamp_min(0)
        return self.sigma + torch.where(self.sigma < self.lowest, lift, torch.zeros_like(lift))


PUBLISHED = Published(
    name="ctrw",
    title="Constrained trainable random weight",
    paper="Ma, Dong & Xu, Adversarial Robustness through Random Weight Sampling",
    venue="NeurIPS 2023",
    code="https://github.com/Xz-As/Constrained_Random_Adv",
    network=RandomWeightInput(**CIFAR10),
    random="weights that multiply the pixels of the input",
    redrawn=BETWEEN,
    protocol=AuthorsProtocol(PGD_20, BETWEEN),
    attack_mode="train",
    baseline="adv_batch",
    training=RESNET18_200,
    claims=(
        Claim("PGD-20", 68.7, 83.5, "ResNet-18", "log in the repository, commit 8625b86"),
        Claim("AutoAttack", 73.9, 83.5, "ResNet-18", "log in the repository, commit 8625b86"),
    ),
    differences=(
        MOVED_STATISTICS,
        "the paper's upper bound on sigma is not in the source",
        "the source picks its epoch by the accuracy on the test set",
    ),
)
