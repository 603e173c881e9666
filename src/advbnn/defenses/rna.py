"""Random normalization aggregation (Dong et al., NeurIPS 2022): each norm layer chooses one of two norms at random."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.defenses.authors_training import MOVED_STATISTICS, RESNET18_200
from advbnn.defenses.kept_draw import KeptDraw
from advbnn.defenses.published import BETWEEN, PGD_20, AuthorsProtocol, Published
from advbnn.defenses.surgery import CIFAR10, Normalised, has_layer, replaced
from advbnn.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class RandomNorms(Normalised):
    """Every BatchNorm beside a GroupNorm of one channel a group; see `RandomNorm2d`."""

    kind = "rna"

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, RandomNorm2d):
            return net
        return self.normalised(replaced(net, nn.BatchNorm2d, lambda _, norm: RandomNorm2d(norm)))


class RandomNorm2d(KeptDraw):
    """BatchNorm or GroupNorm with C groups, each with probability 1/2, kept until the next draw, for the whole batch.

    The layers choose independently: L of them make 2^L paths. Each norm has its own scale and shift, and only BatchNorm
    has running statistics; they move where it is chosen. Both norms are computed and one is taken, so that a captured
    graph follows the draw.
    """

    use_batch: Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        if norm.momentum is None and norm.running_mean is not None:
            raise ArgumentError(f"net's BatchNorm must have a momentum, such as 0.1, got {norm}; set it")
        self.batch, self.group = norm, nn.GroupNorm(norm.num_features, norm.num_features, eps=norm.eps)
        if norm.running_mean is not None:
            self.group.to(norm.running_mean)
        self.register_buffer("use_batch", torch.ones((), dtype=torch.bool), persistent=False)
        self.resample()

    def redraw(self) -> None:
        self.use_batch.copy_(torch.rand((), device=self.use_batch.device) < 0.5)

    def forward(self, x: Tensor) -> Tensor:
        # of the type of x, although autocast computes GroupNorm in float32
        return torch.where(self.use_batch, self._batch_norm(x), self.group(x).to(x.dtype))

    def _batch_norm(self, x: Tensor) -> Tensor:
        norm = self.batch
        mean, var = norm.running_mean, norm.running_var
        if not self.training or mean is None or var is None:
            outputs: Tensor = norm(x)
            return outputs
        moved = (mean.clone(), var.clone())
        outputs = functional.batch_norm(x, *moved, norm.weight, norm.bias, True, norm.momentum or 0.0, norm.eps)
        with torch.no_grad():
            for statistic, new in zip((mean, var), moved, strict=True):
                statistic.copy_(torch.where(self.use_batch, new, statistic))
        return outputs


PUBLISHED = Published(
    name="rna",
    title="Random normalization aggregation",
    paper="Dong et al., Random Normalization Aggregation for Adversarial Defense",
    venue="NeurIPS 2022",
    code="https://github.com/UniSerj/Random-Norm-Aggregation",
    network=RandomNorms(**CIFAR10),
    random="BatchNorm or GroupNorm in every norm layer",
    redrawn=BETWEEN,
    protocol=AuthorsProtocol(PGD_20, BETWEEN),
    attack_mode="train",
    baseline="adv_batch",
    training=RESNET18_200,
    differences=(
        MOVED_STATISTICS,
        "the training command of the source's README lacks its flag for adversarial training",
        "the repository states no accuracy; those of the paper could not be confirmed",
    ),
)
