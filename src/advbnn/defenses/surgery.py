"""A copy of a network with some of its layers replaced: how a published defence is put into any architecture."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from advbnn.errors import ArgumentError, within

Layer = TypeVar("Layer", bound=nn.Module)


def layers_of(net: nn.Module, kind: type[Layer]) -> list[tuple[str, Layer]]:
    """The layers of this exact type with their names, in the order of registration; a shared layer once.

    A subclass is not among them: a layer that a defence has made random is left alone by the next one.
    """
    return [(name, module) for name, module in net.named_modules() if type(module) is kind]


def has_layer(net: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a part of the network is of this type: a defence is put into a network once."""
    return any(isinstance(module, kind) for module in net.modules())


def replaced(
    net: nn.Module,
    kind: type[Layer],
    make: Callable[[str, Layer], nn.Module],
    only: Callable[[list[tuple[str, Layer]]], Iterable[tuple[str, Layer]]] | None = None,
) -> nn.Module:
    """A copy of `net` in which `make(name, layer)` takes the place of the layers of this type.

    `only` chooses among them, such as `lambda layers: layers[:1]`. Where a layer is used in several places, so is its
    replacement.
    """
    result = copy.deepcopy(net)
    found = layers_of(result, kind)
    chosen = list(found if only is None else only(found))
    if not chosen:
        name = kind.__name__
        raise ArgumentError(f"net has no layer of {name} that this defence could make random; use another network")
    new = {id(layer): make(name, layer).train(layer.training) for name, layer in chosen}
    if id(result) in new:
        return new[id(result)]
    for parent in list(result.modules()):
        for name, child in parent._modules.items():
            if child is not None and id(child) in new:
                parent._modules[name] = new[id(child)]
    return result


def last_linear(layers: list[tuple[str, nn.Linear]]) -> list[tuple[str, nn.Linear]]:
    """For `only`: the classifier, taken to be the linear layer that was registered last."""
    return layers[-1:]


@dataclass(frozen=True, kw_only=True)
class Normalised:
    """The settings of a defence whose source normalises the input: (x - mean) / std.

    Where the randomness meets the input, the mean of the pixels would otherwise carry more of it than their contrast
    does. Elsewhere a convolution and its norm could learn the same function, but for the border, which a convolution
    pads with zeros. 0 and 1 leave the input as it is, for a network that normalises already.
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        within("mean", self.mean, "[-1e6, 1e6]", "0 and std=1 leave the input as it is")
        within("std", self.std, "(0, 1e6]", "1 and mean=0 leave the input as it is")

    def normalised(self, net: nn.Module) -> nn.Module:
        """`net` behind a `Normalize`, if there is something to do."""
        if (self.mean, self.std) == (0, 1):
            return net
        return nn.Sequential(OrderedDict(normalize=Normalize(self.mean, self.std).train(net.training), net=net))


CIFAR10: dict[str, Any] = {"mean": 0.473, "std": 0.251}
"""Of all channels; sources have numbers for each, within 6 % of these."""

CIFAR10_IMAGES: dict[str, Any] = {"mean": 0.473, "std": 0.201}
"""The same with the mean standard deviation of single images, which other sources have."""


class Normalize(nn.Module):
    """(x - mean) / std. The numbers are stored with the weights, which were trained for them."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std
