"""A convolution with fused bias and ReLU, where the device has one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


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
    """max(0, W * x + b) for images, differentiable in x alone."""
    if x.is_cuda:
        result: Tensor = torch.ops.aten.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)
        return result
    return functional.conv2d(x, weight, bias, tuple(stride), tuple(padding), tuple(dilation), groups).relu()


@conv_relu.register_fake
def _shape(x: Tensor, weight: Tensor, bias: Tensor, *geometry: Any) -> Tensor:
    return functional.conv2d(x, weight, bias, *geometry)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, *ctx.geometry = inputs
    ctx.save_for_backward(x, weight, output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, output = ctx.saved_tensors
    stride, padding, dilation, groups = ctx.geometry
    # one pass over memory instead of two with torch.where
    passed = torch.ops.aten.threshold_backward(gradient, output, 0)
    # only the gradient of the input
    by_input: Tensor = torch.ops.aten.convolution_backward(
        passed, x, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
    )[0]
    return by_input, None, None, None, None, None, None


conv_relu.register_autograd(_backward, setup_context=_keep)
