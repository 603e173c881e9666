# ruff: noqa: N803  Triton's compile-time constants are written in capitals
"""Drawing weights on the GPU in one pass: noise, spread, mean and rounding to the type of the computation.

Written in Triton, which uses all four numbers of a counter where the compiler's own noise takes one. The noise is that
of `advbnn.philox`, so nothing of it has to be kept for the backward pass.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 512  # counters a program; four normals each


@triton.jit
def _normals4(seed, stream, counter):  # type: ignore[no-untyped-def]
    zero = counter * 0
    a, b, c, d = tl.philox(seed, counter, zero + stream, zero, zero)
    first = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(a), tl.uint_to_uniform_float(b))
    second = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(c), tl.uint_to_uniform_float(d))
    return first[0], first[1], second[0], second[1]


@triton.jit
def _noise(seed_pointer, stream, start, position, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Four consecutive normals for each of BLOCK counters, in order: [4 * BLOCK]."""
    counter = (start + position) // 4 + tl.arange(0, BLOCK)
    n0, n1, n2, n3 = _normals4(tl.load(seed_pointer), stream, counter)
    return tl.reshape(tl.join(tl.join(n0, n2), tl.join(n1, n3)), (4 * BLOCK,))


@triton.jit
def _draw(mu, s, out, seed, stream, start, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    position = tl.program_id(0) * BLOCK * 4
    index = position + tl.arange(0, 4 * BLOCK)
    inside = index < size
    eps = _noise(seed, stream, start, position, BLOCK)
    value = tl.load(mu + index, inside) + tl.exp(tl.load(s + index, inside)) * eps
    tl.store(out + index, value.to(out.dtype.element_ty), inside)


@triton.jit
def _draw_backward(  # type: ignore[no-untyped-def]
    grad, mu, s, grad_mu, grad_s, seed, factor, stream, start, size, weight, precision, prior_mean,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK * 4
    index = position + tl.arange(0, 4 * BLOCK)
    inside = index < size
    eps = _noise(seed, stream, start, position, BLOCK)
    g = tl.load(grad + index, inside).to(tl.float32)
    std = tl.exp(tl.load(s + index, inside))
    share = weight * tl.load(factor)
    by_mu = g + share * precision * (tl.load(mu + index, inside) - prior_mean)
    by_s = g * std * eps + share * (precision * std * std - 1)
    if ADD:
        by_mu += tl.load(grad_mu + index, inside)
        by_s += tl.load(grad_s + index, inside)
    tl.store(grad_mu + index, by_mu, inside)
    tl.store(grad_s + index, by_s, inside)


def draw(mu: Tensor, s: Tensor, *, seed: Tensor, stream: int, start: int, dtype: torch.dtype) -> Tensor:
    """w = mu + exp(s) * eps in `dtype` and in the memory order of mu.

    Args:
        mu: means, float32, dense in memory.
        s: log standard deviations, in the same order.
        seed: the seed, an int64 tensor of one number on the device, so that a CUDA graph can be replayed with another.
        stream: the stream of noise: one for each draw that a seed is used for.
        start: position of this tensor's first number in the stream; a multiple of 4.
        dtype: type of the result.
    """
    out = torch.empty_like(mu, dtype=dtype)
    _draw[_grid(mu)](mu, s, out, seed, stream, start, mu.numel(), BLOCK=_BLOCK)
    return out


def draw_backward(
    grad: Tensor,
    mu: Tensor,
    s: Tensor,
    grad_mu: Tensor,
    grad_s: Tensor,
    *,
    seed: Tensor,
    stream: int,
    start: int,
    weight: float,
    factor: Tensor,
    prior_std: float,
    prior_mean: float,
    add: bool,
) -> None:
    """RandLayer's backward pass (appendix B) into `grad_mu` and `grad_s`, the noise of `draw` made a second time.

    Args:
        grad: the gradient of the drawn weight, in the memory order of mu like all others.
        mu: means.
        s: log standard deviations.
        grad_mu: receives the gradient of mu.
        grad_s: receives the gradient of s.
        seed: as for `draw`.
        stream: as for `draw`.
        start: as for `draw`.
        weight: factor of the gradient of the Gaussian KL, which is added; 0 for none.
        factor: one more factor of it, a float32 tensor of one number on the device.
        prior_std: standard deviation of the prior.
        prior_mean: mean of the prior.
        add: add to what `grad_mu` and `grad_s` hold instead of overwriting it.
    """
    _draw_backward[_grid(mu)](
        grad, mu, s, grad_mu, grad_s, seed, factor, stream, start, mu.numel(), weight, prior_std**-2, prior_mean,
        ADD=add, BLOCK=_BLOCK,
    )  # fmt: skip


def _grid(tensor: Tensor) -> Any:
    return (triton.cdiv(tensor.numel(), 4 * _BLOCK),)
