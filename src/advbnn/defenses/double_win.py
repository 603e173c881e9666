"""Double-Win Quant (Fu et al., ICML 2021): weights and activations quantised to a random number of bits."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.defenses.authors_training import MOVED_STATISTICS, AuthorsTraining
from advbnn.defenses.kept_draw import KeptDraw
from advbnn.defenses.optimizers import SGDOptimizer
from advbnn.defenses.published import BETWEEN, PGD_20, AuthorsProtocol, Claim, Published
from advbnn.defenses.schedules import Stages
from advbnn.defenses.surgery import CIFAR10, Normalised, has_layer, replaced
from advbnn.errors import ArgumentError, whole


@dataclass(frozen=True, kw_only=True)
class RandomPrecision(Normalised):
    """The network with `fewest` to `most` bits, the same in all layers; see `RandomPrecisionNet`."""

    kind = "double_win"
    fewest: int = 4
    most: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("fewest", self.fewest, 2, 16)
        whole("most", self.most, self.fewest, 16)

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, RandomPrecisionNet):
            return net
        return self.normalised(RandomPrecisionNet(net, self.fewest, self.most))


class RandomPrecisionNet(KeptDraw):
    """One number of bits for every quantised convolution, uniform in `fewest` to `most`, kept until the next draw.

    Quantised are all convolutions but the first and those of kernel size 1 (the shortcuts); the classifier is not.
    BatchNorm has its own scale, shift and statistics for every number of bits. There are most - fewest + 1 networks:
    `at(bits)` fixes one of them. A training step attacks and updates the same one, in training mode: each of the
    BatchNorms sees one step in thirteen, so that its running statistics are those of another network.
    """

    also_for_update = True
    bits: Tensor

    def __init__(self, net: nn.Module, fewest: int = 4, most: int = 16) -> None:
        super().__init__()
        self.fewest, self.most = fewest, most
        self.register_buffer("bits", torch.tensor(most), persistent=False)

        def inner(layers: list[tuple[str, nn.Conv2d]]) -> Iterable[tuple[str, nn.Conv2d]]:
            return [(name, conv) for name, conv in layers[1:] if conv.kernel_size != (1, 1)]

        quantised = replaced(net, nn.Conv2d, lambda _, conv: QuantisedConv2d(conv), inner)
        self.net = replaced(quantised, nn.BatchNorm2d, lambda _, norm: SwitchableNorm2d(norm, most - fewest + 1))
        self.training = net.training
        self.resample()

    def redraw(self) -> None:
        self.at(torch.randint(self.fewest, self.most + 1, (), device=self.bits.device))

    def at(self, bits: Tensor | int) -> None:
        """Use this number of bits until the next draw."""
        self.bits.fill_(bits) if isinstance(bits, int) else self.bits.copy_(bits)
        for module in self.net.modules():
            if isinstance(module, QuantisedConv2d):
                module.bits.copy_(self.bits)
            elif isinstance(module, SwitchableNorm2d):
                module.choice.copy_(self.bits - self.fewest)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(x)
        return outputs

    def extra_repr(self) -> str:
        return f"bits={self.fewest}-{self.most}"


class QuantisedConv2d(nn.Module):
    """A convolution of quantised weights and inputs, with straight-through gradients.

    Weights are quantised between their extremes in each output channel, inputs between the extremes of the batch, whose
    running values (0.1 old + 0.9 new) are used in evaluation mode; what lies beyond them is clipped.
    """

    bits: Tensor
    low: Tensor
    span: Tensor

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        like: dict[str, Any] = {"device": conv.weight.device, "dtype": conv.weight.dtype}
        self.register_buffer("bits", torch.tensor(16, device=conv.weight.device), persistent=False)
        self.register_buffer("low", torch.zeros((), **like))
        self.register_buffer("span", torch.zeros((), **like))

    def forward(self, x: Tensor) -> Tensor:
        low, span = self.low, self.span
        if self.training:
            low, span = x.amin(), x.amax() - x.amin()
            with torch.no_grad():
                for running, new in ((self.low, low), (self.span, span)):
                    # before the first batch there is nothing to average with
                    running.copy_(torch.where(self.span == 0, new, 0.1 * running + 0.9 * new))
        flat = self.conv.weight.flatten(1)
        shape = (-1, *[1] * (self.conv.weight.dim() - 1))
        least, most = flat.amin(1).view(shape), flat.amax(1).view(shape)
        weight = quantised(self.conv.weight, least, most - least, self.bits)
        outputs: Tensor = self.conv._conv_forward(quantised(x, low, span, self.bits), weight, self.conv.bias)
        return outputs


def quantised(x: Tensor, low: Tensor, span: Tensor, bits: Tensor) -> Tensor:
    """`x` rounded to the nearest of 2^bits levels from `low` to `low + span`, with the gradient of the identity.

    That gradient also passes where `x` lies beyond the levels, as in the source.
    """
    low, most = low.detach(), 2.0**bits - 1
    step = span.detach() / most
    step = torch.where(step > 0, step, 1)
    level = ((x - low) / step).clamp_min(0)
    rounded = torch.minimum(level, most.to(level)).round() * step + low
    return x + (rounded - x).detach()


class SwitchableNorm2d(nn.Module):
    """BatchNorm with `count` sets of scale, shift and running statistics, of which `choice` is used."""

    choice: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.BatchNorm2d, count: int) -> None:
        super().__init__()
        if not norm.affine or norm.running_mean is None or norm.running_var is None or norm.momentum is None:
            raise ArgumentError(f"net's BatchNorm must be affine and have running statistics, got {norm}")
        self.eps, self.momentum = norm.eps, norm.momentum
        self.weight = nn.Parameter(norm.weight.detach().repeat(count, 1))
        self.bias = nn.Parameter(norm.bias.detach().repeat(count, 1))
        self.register_buffer("running_mean", norm.running_mean.repeat(count, 1))
        self.register_buffer("running_var", norm.running_var.repeat(count, 1))
        self.register_buffer("choice", torch.zeros((), dtype=torch.int64, device=norm.weight.device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        row = self.choice.view(1)
        weight, bias, mean, var = (
            t.index_select(0, row)[0] for t in (self.weight, self.bias, self.running_mean, self.running_var)
        )
        # the fast training step passes matrices in half precision, and normalisation wants its parameters in single
        weight, bias = weight.to(mean.dtype), bias.to(mean.dtype)
        outputs = functional.batch_norm(x, mean, var, weight, bias, self.training, self.momentum, self.eps)
        if self.training:
            with torch.no_grad():
                self.running_mean.index_copy_(0, row, mean[None])
                self.running_var.index_copy_(0, row, var[None])
        return outputs


PUBLISHED = Published(
    name="double_win",
    title="Double-Win Quant",
    paper="Fu et al., Double-Win Quant: Aggressively Winning Robustness of Quantized Deep Neural Networks via "
    "Random Precision Training and Inference",
    venue="ICML 2021",
    code="https://github.com/RICE-EIC/Double-Win-Quant",
    network=RandomPrecision(**CIFAR10),
    random="the number of bits of all weights and activations, 4 to 16",
    redrawn=BETWEEN,
    protocol=AuthorsProtocol(replace(PGD_20, pick="first"), BETWEEN),
    attack_mode="train",
    baseline="adv_batch",
    training=AuthorsTraining(
        architecture="preact_resnet18",
        attack=replace(PGD_20, steps=7),
        optimizer=SGDOptimizer(lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=Stages(epochs=(80, 40, 40), fresh_optimizer=False),
        differences=(MOVED_STATISTICS,),
    ),
    claims=(
        Claim("PGD-20", 65.2, 82.2, "PreActResNet-18", "image in the repository, RPI + RPT"),
        Claim("AutoAttack", 54.6, 82.2, "PreActResNet-18", "image in the repository, RPI + RPT"),
    ),
    differences=(
        "ResNet-18 and PGD-10 in training; the source has PreActResNet-18 and PGD-7",
        "running statistics are updated once in a step; in the source by the passes of the attack, too",
    ),
)
