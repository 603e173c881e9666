# ruff: noqa: N803  Triton's compile-time constants are written in capitals
"""Weight samples on the GPU in one pass over memory: noise, standard deviation, mean, and rounding to the type.

Written in Triton, which uses all four numbers of a Philox counter, where torch's compiler uses one. The noise equals
that of `advbnn.fast.philox`, so none of it is stored for the backward pass.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 512  # counters per program; four normals each


@triton.jit
def _turn(u):  # type: ignore[no-untyped-def]
    """cos(2 pi u) and sin(2 pi u) for u in [0, 1), by their series within a quarter turn of 0 and 1/2.

    The library's functions take angles of any size, which costs more than everything else here.
    """
    half = tl.floor(2 * u + 0.5)
    t = u - 0.5 * half
    sign = 1.0 - 2.0 * (half - 2.0 * tl.floor(0.5 * half))
    q = t * t
    cosine = 1.0 + q * (
        -19.739208802
        + q * (64.939394023 + q * (-85.456817207 + q * (60.244641372 + q * (-26.426256783 + q * (7.903536371)))))
    )
    sine = 6.283185307 + q * (
        -41.34170224 + q * (81.605249276 + q * (-76.705859753 + q * (42.058693945 + q * (-15.094642577))))
    )
    return sign * cosine, sign * t * sine


@triton.jit
def _normal_pair(a, b):  # type: ignore[no-untyped-def]
    """Two normals from two numbers of 32 random bits (Box and Muller)."""
    radius = tl.sqrt(-2.0 * tl.log(tl.maximum(tl.uint_to_uniform_float(a), 1.0e-7)))
    cosine, sine = _turn(tl.uint_to_uniform_float(b))
    return radius * cosine, radius * sine


@triton.jit
def _normals4(seed, stream, counter):  # type: ignore[no-untyped-def]
    zero = counter * 0
    a, b, c, d = tl.philox(seed, counter, zero + stream, zero, zero)
    n0, n1 = _normal_pair(a, b)
    n2, n3 = _normal_pair(c, d)
    return n0, n1, n2, n3


@triton.jit
def _noise(seed_pointer, stream, start, position, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Four consecutive normals for each of BLOCK counters, in order: [4 * BLOCK]."""
    counter = (start + position) // 4 + tl.arange(0, BLOCK)
    n0, n1, n2, n3 = _normals4(tl.load(seed_pointer), stream, counter)
    return tl.reshape(tl.join(tl.join(n0, n2), tl.join(n1, n3)), (4 * BLOCK,))


@triton.jit
def _sample(mu, s, out, seed, stream, start, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    position = tl.program_id(0) * BLOCK * 4
    index = position + tl.arange(0, 4 * BLOCK)
    inside = index < size
    eps = _noise(seed, stream, start, position, BLOCK)
    value = tl.load(mu + index, inside) + tl.exp(tl.load(s + index, inside)) * eps
    tl.store(out + index, value.to(out.dtype.element_ty), inside)


@triton.jit
def _sample_scaled(mu, std, scale, out, blocks, seed, stream, start, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    block = blocks + 5 * tl.program_id(0)
    position, first, end = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    row, channel = tl.load(block + 3), tl.load(block + 4)
    index = position + tl.arange(0, 4 * BLOCK)
    inside = (index >= first) & (index < end)
    eps = _noise(seed, stream, start, position, BLOCK)
    value = tl.load(mu + index, inside).to(tl.float32) + tl.load(std + index, inside).to(tl.float32) * eps
    # float instead of slow integer division: a block has few rows, so adding half an entry outweighs rounding
    whole = (position - first) // row
    rest = (position - first - whole * row) + tl.arange(0, 4 * BLOCK)
    number = channel + whole + ((rest + 0.5) * (1.0 / row)).to(tl.int32)
    value *= tl.load(scale + number, inside & (channel >= 0), other=1.0)
    tl.store(out + index, value.to(out.dtype.element_ty), inside)


@triton.jit
def _sample_backward(  # type: ignore[no-untyped-def]
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


def sample(mu: Tensor, s: Tensor, *, seed: Tensor, stream: int, start: int, dtype: torch.dtype) -> Tensor:
    """w = mu + exp(s) * eps in `dtype` and in the memory order of mu.

    Args:
        mu: means, float32, dense in memory.
        s: log standard deviations, in the same order.
        seed: an int64 tensor of one number on the device, so that a CUDA graph can be replayed with another seed.
        stream: the stream of noise: one for each sample that uses a seed.
        start: position of the tensor's first number in the stream; a multiple of 4.
        dtype: type of the result.
    """
    out = torch.empty_like(mu, dtype=dtype)
    _sample[_grid(mu)](mu, s, out, seed, stream, start, mu.numel(), BLOCK=_BLOCK)
    return out


def blocks_of(rows: Sequence[tuple[int, int, int]], device: torch.device) -> Tensor:
    """The division of flat memory into the blocks of `sample_scaled`; each block writes to one matrix only.

    A block starts at a whole counter of the noise, even if its matrix starts in the middle of one.

    Args:
        rows: for each matrix the number of rows, their length, and the index of the first row's scale; -1 for a
            matrix without scales.
        device: where the kernel will run.
    """
    table, first = [], 0
    for count, length, scale in rows:
        end = first + count * length
        table += [(position, first, end, length, scale) for position in range(first - first % 4, end, 4 * _BLOCK)]
        first = end
    return torch.tensor(table, dtype=torch.int32, device=device)


def sample_scaled(
    mu: Tensor, std: Tensor, scale: Tensor, blocks: Tensor, *, seed: Tensor, stream: int, start: int, dtype: torch.dtype
) -> Tensor:
    """w = scale_row * (mu + std * eps) for matrices side by side in flat memory, with the noise of `sample`.

    Takes standard deviations, not their logarithms, scales in float32, and the result of `blocks_of`.
    """
    out = torch.empty_like(mu, dtype=dtype)
    _sample_scaled[(len(blocks),)](mu, std, scale, out, blocks, seed, stream, start, BLOCK=_BLOCK)
    return out


def sample_backward(
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
    """RandLayer's backward pass (appendix B) into `grad_mu` and `grad_s`, recomputing the noise of `sample`.

    All tensors are in the memory order of mu; `seed`, `stream` and `start` as for `sample`.

    Args:
        grad: the gradient of the sampled weight.
        weight: factor of the KL gradient, which is added; 0 for none.
        factor: another factor of it, a float32 tensor of one number on the device.
        add: add to `grad_mu` and `grad_s` instead of overwriting them.
    """
    _sample_backward[_grid(mu)](
        grad, mu, s, grad_mu, grad_s, seed, factor, stream, start, mu.numel(), weight, prior_std**-2, prior_mean,
        ADD=add, BLOCK=_BLOCK,
    )  # fmt: skip


def _grid(tensor: Tensor) -> Any:
    return (triton.cdiv(tensor.numel(), 4 * _BLOCK),)
