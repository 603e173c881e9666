"""Tiny networks, and images for them."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from advbnn.bayes.sample_bank import SampleBank
from advbnn.bayes.swag import SWAG


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 3)).eval()


def images(n: int = 5) -> torch.Tensor:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def dense_net(norm: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5) if norm else nn.Tanh(), nn.Linear(5, 3))


def with_statistics(net: nn.Module) -> nn.Module:
    """The network with running statistics that are not the initial ones."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    return net


class ConvNorm(nn.Module):
    """A convolution and a BatchNorm, used as `rule(net, x)` says."""

    def __init__(self, rule: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.norm, self.rule = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), rule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rule(self, x)


def skips_when_evaluated(net: ConvNorm, x: torch.Tensor) -> torch.Tensor:
    """The output of the convolution is used twice, in evaluation mode only."""
    z = net.conv(x)
    return net.norm(z) if net.training else z + net.norm(z)


def filled_bank(net: nn.Module, size: int = 3) -> tuple[SampleBank, list[nn.Module]]:
    """A bank and, as plain networks, the samples in it; the network itself has other weights."""
    bank, nets = SampleBank(net), []
    for sample in range(size + 1):
        for tensor in (*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())):
            tensor.data = torch.rand_like(tensor) + 0.1
        if sample < size:
            bank.add()
            nets.append(copy.deepcopy(net))
    return bank, nets


def filled_swag(net: nn.Module, size: int = 5, **options: Any) -> tuple[SWAG, list[nn.Module]]:
    """A SWAG and, as plain networks, the states that it has collected; the network itself has other weights."""
    swag, nets = SWAG(net, **options), []
    for state in range(size + 1):
        for parameter in net.parameters():
            parameter.data = parameter.data + 0.1 * torch.randn_like(parameter)
        if state < size:
            swag.collect()
            nets.append(copy.deepcopy(net))
    return swag, nets
