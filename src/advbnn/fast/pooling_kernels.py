# ruff: noqa: N803  Triton's compile-time constants are written in capitals
"""Max-pooling of 2x2 windows and its gradient, for images in the memory format channels_last.

Each is one pass over memory. The gradient finds the maximum again, in the activations that the layer before it keeps
anyway, where torch stores and reads an index of eight bytes for each output.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _first_corner(index, channels, width):  # type: ignore[no-untyped-def]
    """Where the window of each output begins, for outputs [image, row, column, channel] of this width in memory."""
    pixel = index // channels
    row = pixel // width  # of all images, one below the other
    return (4 * row * width + 2 * (pixel - row * width)) * channels + (index - pixel * channels)


@triton.jit(do_not_specialize=["size", "width"])
def _pool(x, out, size, channels, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    first = _first_corner(index, channels, width)
    below = first + 2 * width * channels
    best = tl.load(x + first, inside).to(tl.float32)
    right = tl.load(x + first + channels, inside).to(tl.float32)
    left_below = tl.load(x + below, inside).to(tl.float32)
    right_below = tl.load(x + below + channels, inside).to(tl.float32)
    # the first of equal ones, and NaN if there is one, as torch does
    best = tl.where((right > best) | (right != right), right, best)
    best = tl.where((left_below > best) | (left_below != left_below), left_below, best)
    best = tl.where((right_below > best) | (right_below != right_below), right_below, best)
    tl.store(out + index, best.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["size", "width"])
def _pool_backward(x, grad, out, size, channels, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    first = _first_corner(index, channels, width)
    below = first + 2 * width * channels
    best = tl.load(x + first, inside).to(tl.float32)
    right = tl.load(x + first + channels, inside).to(tl.float32)
    left_below = tl.load(x + below, inside).to(tl.float32)
    right_below = tl.load(x + below + channels, inside).to(tl.float32)
    g = tl.load(grad + index, inside).to(tl.float32)
    second = (right > best) | (right != right)
    best = tl.where(second, right, best)
    third = (left_below > best) | (left_below != left_below)
    best = tl.where(third, left_below, best)
    fourth = (right_below > best) | (right_below != right_below)
    # the last that was taken is the maximum
    kind = out.dtype.element_ty
    tl.store(out + below + channels, tl.where(fourth, g, 0.0).to(kind), inside)
    g = tl.where(fourth, 0.0, g)
    tl.store(out + below, tl.where(third, g, 0.0).to(kind), inside)
    g = tl.where(third, 0.0, g)
    tl.store(out + first + channels, tl.where(second, g, 0.0).to(kind), inside)
    tl.store(out + first, tl.where(second, 0.0, g).to(kind), inside)


def max_pool(x: Tensor) -> Tensor:
    """`max_pool2d(x, 2)` of channels_last images with even sides."""
    n, channels, height, width = x.shape
    out = torch.empty(
        (n, channels, height // 2, width // 2), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    _pool[_grid(out)](x, out, out.numel(), channels, width // 2, BLOCK=_BLOCK)
    return out


def max_pool_backward(x: Tensor, grad: Tensor) -> Tensor:
    """The gradient of `max_pool(x)`, for that of its output in channels_last."""
    out = torch.empty_like(x, memory_format=torch.channels_last)
    _pool_backward[_grid(grad)](x, grad, out, grad.numel(), x.shape[1], x.shape[3] // 2, BLOCK=_BLOCK)
    return out


def _grid(outputs: Tensor) -> tuple[int]:
    return (triton.cdiv(outputs.numel(), _BLOCK),)
