"""A network without its own weights, run with the weights and statistics it is given, and with fused layers.

The fast training step and attack sample weights in half precision and pass them to a `FusedNet`, while the network
itself, its parameters and its optimizer stay in single precision.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from advbnn.bayes.functional import parameter_paths
from advbnn.models.conv_bn import ConvBN, conv_bn_pairs, fold


class FusedNet:
    """The structure of `net`, in training or evaluation mode, computing in `precision`.

    In evaluation mode, BatchNorm and the ReLU after it are fused into the convolution before it. In training mode, a
    bias that BatchNorm cancels is not added to the activations but to the running mean directly, so its gradient is
    exactly zero. Both are exact up to rounding. `net` is not changed and not kept.

    `precision` is the type of matrix products. BatchNorm, losses and the like stay in float32, by the rules of torch's
    autocast. In training mode, the running statistics that are passed in are updated.
    """

    def __init__(self, net: nn.Module, precision: torch.dtype, training: bool) -> None:
        self.precision = precision
        self.paths = parameter_paths(net)
        self.structure = copy.deepcopy(net).to("meta").train(training)
        _adapt_convolutions(self.structure)
        pairs = [pair for pair in conv_bn_pairs(net, training=training) if self._owns_its_tensors(pair)]
        changes = _cancelled_biases(self.structure, pairs) if training else _folded_norms(self.structure, pairs)
        self._changes: Sequence[_CancelledBias | Fold] = changes

    @property
    def folds(self) -> list["Fold"]:
        """The BatchNorms that are folded into convolutions."""
        return [change for change in self._changes if isinstance(change, Fold)]

    def placed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors by their paths in the structure; a tied weight has several."""
        return {path: tensor for name, tensor in tensors.items() for path in self.paths[name]}

    def fold(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that the structure uses, by path: with folded BatchNorm, or without cancelled biases."""
        placed = self.placed(tensors)
        for change in self._changes:
            change.place(placed)
        return placed

    def __call__(self, tensors: Mapping[str, Tensor], x: Tensor, folded: bool = False) -> Tensor:
        """The network's output in float32, with these parameters and buffers; `folded` if by `fold` already."""
        half = self.precision != torch.float32
        with torch.autocast(x.device.type, self.precision, enabled=half, cache_enabled=False):
            placed = {**tensors} if folded else self.fold(tensors)
            outputs: Tensor = functional_call(self.structure, placed, (x,), tie_weights=False)
        return outputs.float()

    def _owns_its_tensors(self, pair: ConvBN) -> bool:
        """Whether no other module shares a tensor with the pair, and no hook computes its weight."""
        if f"{pair.conv}.weight" not in self.paths:
            return False
        ours = [name for name in self.paths if name.rpartition(".")[0] in (pair.conv, pair.norm)]
        held = [name for part in _parts(self.structure, pair) for name in part.state_dict()]
        return len(ours) == len(held) and all(len(self.paths[name]) == 1 for name in ours)


class FusedConv2d(nn.Conv2d):
    """A convolution of a `FusedNet`.

    If it `sees_images`, it keeps their precision although the arithmetic is bfloat16. Eight significant bits change a
    pixel by up to 0.002, a fifteenth of the usual perturbation. So the image is split into two numbers, x = high + low,
    in separate channels that share the weights. Tensor cores need the three channels padded to eight anyway, so this
    is free; in float32 they need them padded to four.

    If `with_relu`, it ends in a ReLU.
    """

    sees_images = False
    with_relu = False

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
        # in half precision only: in single precision torch allows TF32 in convolutions, but not in products
        if x.is_cuda and weight.dtype != torch.float32 and not weight.requires_grad and self._is_dense(x):
            outputs = dense_convolution(x, weight, bias)
            return outputs.relu() if self.with_relu else outputs
        # on images of few channels, a fused ReLU is slower than a convolution and a compiled ReLU
        if self.with_relu and bias is not None and not (self.sees_images and torch.compiler.is_compiling()):
            activations: Tensor = conv_relu(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)
            return activations
        outputs = functional.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        return outputs.relu() if self.with_relu else outputs

    def _is_dense(self, x: Tensor) -> bool:
        """Whether every output sees every input: 3x3 kernels on 2x2 images."""
        shape = x.shape[2:] == (2, 2) and self.kernel_size == (3, 3)
        return shape and self.padding == self.stride == self.dilation == (1, 1) and self.groups == 1


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
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """max(0, W * x + b) for images, differentiable in x alone; with fused bias and ReLU where the device has it."""
    if x.is_cuda:
        result: Tensor = torch.ops.aten.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)
        return result
    return functional.conv2d(x, weight, bias, tuple(stride), tuple(padding), tuple(dilation), groups).relu()


@conv_relu.register_fake
def _conv_relu_shape(x: Tensor, weight: Tensor, bias: Tensor, *geometry: Any) -> Tensor:
    return functional.conv2d(x, weight, bias, *geometry)


def _conv_relu_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, *ctx.geometry = inputs
    ctx.save_for_backward(x, weight, output)


def _conv_relu_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, output = ctx.saved_tensors
    stride, padding, dilation, groups = ctx.geometry
    # one pass over memory instead of two with torch.where; then the gradient of the input alone
    passed = torch.ops.aten.threshold_backward(gradient, output, 0)
    by_input: Tensor = torch.ops.aten.convolution_backward(
        passed, x, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
    )[0]
    return by_input, None, None, None, None, None, None


conv_relu.register_autograd(_conv_relu_backward, setup_context=_conv_relu_context)


class _CancelledBias:
    """A bias that batch statistics cancel: it is left out."""

    def __init__(self, pair: ConvBN, conv: nn.Conv2d, momentum: float) -> None:
        self._bias, self._mean = f"{pair.conv}.bias", f"{pair.norm}.running_mean"
        self._share = momentum / (1 - momentum)
        conv.bias = None

    def place(self, placed: dict[str, Tensor]) -> None:
        """Add the share of the bias to the running mean, before the update multiplies it by 1 - momentum."""
        bias = placed.pop(self._bias).detach()
        if self._mean in placed:
            placed[self._mean].add_(bias, alpha=self._share)


class Fold:
    """A BatchNorm with running statistics, folded into the convolution before it."""

    def __init__(self, pair: ConvBN, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        self.weight, self.bias, self.norm = f"{pair.conv}.weight", f"{pair.conv}.bias", pair.norm
        self.has_bias, self.affine = conv.bias is not None, norm.affine
        self.channels, self.eps = norm.num_features, norm.eps
        if conv.bias is None:  # for the shift
            conv.bias = nn.Parameter(torch.empty(norm.num_features, device="meta"))

    def place(self, placed: dict[str, Tensor]) -> None:
        """Replace the tensors of the pair by those of the folded convolution."""
        prefix = f"{self.norm}."
        ours = [name for name in placed if name.startswith(prefix)]
        tensors = {name.removeprefix(prefix): placed.pop(name) for name in ours}
        placed[self.weight], placed[self.bias] = fold(placed[self.weight], placed.get(self.bias), self.eps, tensors)


def _cancelled_biases(structure: nn.Module, pairs: Sequence[ConvBN]) -> list[_CancelledBias]:
    cancelled = []
    for pair in pairs:
        conv, norm = _parts(structure, pair)
        # without a momentum the running mean is a cumulative average, whose share changes with every batch
        if conv.bias is not None and norm.momentum is not None and norm.momentum < 1:
            cancelled.append(_CancelledBias(pair, conv, norm.momentum))
    return cancelled


def _folded_norms(structure: nn.Module, pairs: Sequence[ConvBN]) -> list[Fold]:
    folded = []
    for pair in pairs:
        conv, norm = _parts(structure, pair)
        if norm.running_mean is None:
            continue
        folded.append(Fold(pair, conv, norm))
        structure.set_submodule(pair.norm, nn.Identity())
        if pair.relu is not None and isinstance(conv, FusedConv2d):
            conv.with_relu = True
            structure.set_submodule(pair.relu, nn.Identity())
    return folded


def _parts(structure: nn.Module, pair: ConvBN) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    return cast(nn.Conv2d, structure.get_submodule(pair.conv)), cast(nn.BatchNorm2d, structure.get_submodule(pair.norm))


def _adapt_convolutions(structure: nn.Module) -> None:
    """Turn the plain convolutions of images into `FusedConv2d`."""
    layers = [m for m in structure.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)]
    for layer in layers:
        if type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
            layer.__class__ = FusedConv2d
    if layers and isinstance(layers[0], FusedConv2d):
        layers[0].sees_images = layers[0].in_channels <= 4 and layers[0].groups == 1


def _split(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    high = x.to(weight.dtype)
    low = (x - high.float()).to(weight.dtype)
    return _padded(torch.cat([high, low], 1), 8), _padded(torch.cat([weight, weight], 1), 8)


def _padded(x: Tensor, multiple: int) -> Tensor:
    """`x` with channels of zeros up to a multiple."""
    return functional.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % multiple))
