"""A network's structure without its weights, run with whatever weights and statistics it is given.

The fast forms of training and attack draw weights in half precision and hand them to the structure, so the network
itself, its parameters and its optimizer stay in single precision.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from advbnn.posterior import places_of


class Twin:
    """The structure of `net`, in training or evaluation mode, computing in `precision`.

    Args:
        net: the network; it is not changed and not kept.
        precision: type of the matrix products. Normalisation, losses and whatever else needs it stays in float32, by
            the rules of torch's autocast.
        training: whether normalisation uses the batch, and updates the running statistics it is given.
    """

    def __init__(self, net: nn.Module, precision: torch.dtype, training: bool) -> None:
        self.precision = precision
        self.places = places_of({**dict(net.named_parameters()), **dict(net.named_buffers())}, net)
        self.structure = copy.deepcopy(net).to("meta").train(training)
        if precision != torch.float32:
            _split_image_convolution(self.structure)

    def __call__(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The network's output in float32, with parameters and buffers by name."""
        half = self.precision != torch.float32
        with torch.autocast(x.device.type, self.precision, enabled=half, cache_enabled=False):
            placed = {place: tensor for name, tensor in tensors.items() for place in self.places[name]}
            outputs: Tensor = functional_call(self.structure, placed, (x,), tie_weights=False)
        return outputs.float()


class SplitConv2d(nn.Conv2d):
    """A convolution of images that keeps their precision where the arithmetic is bfloat16.

    Eight significant bits move a pixel by up to 0.002, a fifteenth of the usual perturbation. So the image goes in as
    two numbers, x = high + low, in channels of their own that share the weights. Tensor cores want the three channels
    padded to eight anyway, so this costs nothing.
    """

    def forward(self, x: Tensor) -> Tensor:
        half = torch.get_autocast_dtype(x.device.type)
        high = x.to(half)
        low = (x - high.float()).to(half)
        weight = self.weight.to(half)
        spare = -2 * x.shape[1] % 8
        inputs = functional.pad(torch.cat([high, low], 1), (0, 0, 0, 0, 0, spare))
        weights = functional.pad(torch.cat([weight, weight], 1), (0, 0, 0, 0, 0, spare))
        bias = None if self.bias is None else self.bias.to(half)
        return functional.conv2d(inputs, weights, bias, self.stride, self.padding, self.dilation)


def _split_image_convolution(structure: nn.Module) -> None:
    """Turn the first convolution, if it sees images of few channels as they are, into a `SplitConv2d`."""
    first = next((m for m in structure.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)), None)
    if type(first) is nn.Conv2d and first.in_channels <= 4 and first.groups == 1 and first.padding_mode == "zeros":
        first.__class__ = SplitConv2d
