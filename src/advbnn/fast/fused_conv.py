"""Convolutions of a `FusedNet`: with the ReLU after them, and what is added in between, as one call."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree


class FusedConv2d(nn.Conv2d):
    """A convolution of a `FusedNet`.

    If it `sees_images`, it keeps their precision although the arithmetic is bfloat16. Eight significant bits change a
    pixel by up to 0.002, a fifteenth of the usual perturbation. So the image is split into two numbers, x = high + low,
    in separate channels that share the weights. Tensor cores need the three channels padded to eight anyway, so this
    is free; in float32 they need them padded to four.

    If `with_relu`, it ends in a ReLU. If it `waits`, a ReLU comes later, perhaps after an addition: see `Waiting`.
    """

    sees_images = False
    with_relu = False
    waits = False

    def forward(self, x: Tensor) -> Tensor:
        """The convolution, in the type of autocast if that is on."""
        weight, bias = self.weight, self.bias
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
            if self.sees_images:
                x, weight = _split(x, weight)
            x = x.to(dtype)
        elif self.sees_images and x.is_cuda:
            x, weight = _padded(x, 4), _padded(weight, 4)
        geometry: Any = (self.stride, self.padding, self.dilation, self.groups)
        # in half precision only: in single precision torch allows TF32 in convolutions, but not in products
        if x.is_cuda and weight.dtype != torch.float32 and not weight.requires_grad and self._is_dense(x):
            outputs = dense_convolution(x, weight, bias)
            return outputs.relu() if self.with_relu else outputs
        if bias is not None and self.waits and not torch.compiler.is_compiling():
            return cast(Tensor, Waiting(x, weight, bias, geometry))
        # on images of few channels, a fused ReLU is slower than a convolution and a compiled ReLU
        if self.with_relu and bias is not None and not (self.sees_images and torch.compiler.is_compiling()):
            activations: Tensor = conv_relu(x, weight, bias, None, *geometry)
            return activations
        outputs = functional.conv2d(x, weight, bias, *geometry)
        return outputs.relu() if self.with_relu else outputs

    def _is_dense(self, x: Tensor) -> bool:
        """Whether every output sees every input: 3x3 kernels on 2x2 images."""
        shape = x.shape[2:] == (2, 2) and self.kernel_size == (3, 3)
        return shape and self.padding == self.stride == self.dilation == (1, 1) and self.groups == 1


class Waiting:
    """A convolution whose inputs are there, and which waits for the ReLU: relu(W * x + b + z) is then one call.

    It takes the place of the convolution's output, whose only use is that ReLU or a sum with z before it. Any other
    operation gets the output itself.
    """

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor, geometry: Any, z: Tensor | None = None) -> None:
        self._operands, self._geometry, self._z = (x, weight, bias), geometry, z

    @property
    def value(self) -> Tensor:
        """What it stands for, without the ReLU."""
        outputs = functional.conv2d(*self._operands, *self._geometry)
        return outputs if self._z is None else outputs + self._z

    @property
    def _shape(self) -> tuple[int, ...]:
        x, weight, _ = self._operands
        settings = zip(x.shape[-2:], weight.shape[-2:], *self._geometry[:3], strict=True)
        sides = [(side + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for side, k, stride, pad, dilation in settings]
        return (*x.shape[:-3], len(weight), *sides)

    def relu(self) -> Tensor:
        outputs: Tensor = conv_relu(*self._operands, self._z, *self._geometry)
        return outputs

    def __add__(self, other: Any) -> Any:
        other = other.value if isinstance(other, Waiting) else other
        # numbers, and what would be broadcast or change the type, are added as ever
        fits = isinstance(other, Tensor) and (other.shape, other.dtype) == (self._shape, self._operands[1].dtype)
        return Waiting(*self._operands, self._geometry, other) if fits and self._z is None else self.value + other

    __radd__ = __add__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (functional.relu, torch.relu, functional.relu_, torch.relu_):
            return args[0].relu()
        if func in (Tensor.__add__, Tensor.add, torch.add) and len(args) == 2 and not kwargs:
            return args[0] + args[1] if isinstance(args[0], cls) else args[1] + args[0]
        given, named = (pytree.tree_map_only(cls, lambda one: one.value, each) for each in (args, kwargs))
        return func(*given, **named)


def dense_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A padded 3x3 convolution of 2x2 images as one matrix product, without the 5/9 of products with zeros."""
    n, inputs, _, _ = x.shape
    outputs = len(weight)
    # windows [output row from below, output column from the right] of the kernel: tap = input - output + 1
    taps = weight.permute(0, 2, 3, 1).unfold(1, 2, 1).unfold(2, 2, 1)  # o, row, column, i, input row, input column
    matrix = taps.permute(1, 2, 0, 4, 5, 3).flip(0, 1).reshape(4 * outputs, 4 * inputs)
    flat = functional.linear(x.permute(0, 2, 3, 1).reshape(n, -1), matrix, None if bias is None else bias.repeat(4))
    return flat.view(n, 2, 2, outputs).permute(0, 3, 1, 2)


@torch.library.custom_op("advbnn::conv_relu", mutates_args=())
def conv_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    z: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """max(0, W * x + b + z) for images, differentiable in x and z alone; one kernel where the device has it."""
    if x.is_cuda:
        aten, geometry = torch.ops.aten, (stride, padding, dilation, groups)
        result: Tensor = (
            aten.cudnn_convolution_relu(x, weight, bias, *geometry)
            if z is None
            else aten.cudnn_convolution_add_relu(x, weight, z, 1.0, bias, *geometry)
        )
        return result
    outputs = functional.conv2d(x, weight, bias, tuple(stride), tuple(padding), tuple(dilation), groups)
    return (outputs if z is None else outputs + z).relu()


@conv_relu.register_fake
def _conv_relu_shape(x: Tensor, weight: Tensor, bias: Tensor, z: Tensor | None, *geometry: Any) -> Tensor:
    return functional.conv2d(x, weight, bias, *geometry)


def _conv_relu_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, _, *ctx.geometry = inputs
    ctx.save_for_backward(x, weight, output)


def _conv_relu_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, output = ctx.saved_tensors
    stride, padding, dilation, groups = ctx.geometry
    # one pass over memory instead of two with torch.where; then the gradient of the input alone
    passed = torch.ops.aten.threshold_backward(gradient, output, 0)
    by_input: Tensor = torch.ops.aten.convolution_backward(
        passed, x, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
    )[0]
    return by_input, None, None, passed if ctx.needs_input_grad[3] else None, None, None, None, None


conv_relu.register_autograd(_conv_relu_backward, setup_context=_conv_relu_context)

CONV_RELU = torch.ops.advbnn.conv_relu.default
"""The same as it stands in a traced graph."""


def adapt_convolutions(structure: nn.Module) -> None:
    """Turn the plain convolutions of images into `FusedConv2d`, also those whose weight a parametrization computes."""
    layers = [m for m in structure.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)]
    for layer in layers:
        plain = parametrize.type_before_parametrizations(layer) is nn.Conv2d
        if plain and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
            kind = type(layer)
            # the weight stays the property that the parametrized class has
            layer.__class__ = FusedConv2d if kind is nn.Conv2d else type(kind.__name__, (FusedConv2d, kind), {})
    if layers and isinstance(layers[0], FusedConv2d):
        layers[0].sees_images = layers[0].in_channels <= 4 and layers[0].groups == 1


def _split(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    high = x.to(weight.dtype)
    low = (x - high.float()).to(weight.dtype)
    return _padded(torch.cat([high, low], 1), 8), _padded(torch.cat([weight, weight], 1), 8)


def _padded(x: Tensor, multiple: int) -> Tensor:
    """`x` with channels of zeros up to a multiple."""
    return functional.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % multiple))
