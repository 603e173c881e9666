"""Counter-based noise: the i-th normal of a stream is a pure function of (seed, stream, i).

Unlike a generator, a counter has no state. So the same noise can be computed in a fused kernel, again in the backward
pass instead of being stored, and again when a run is resumed. The numbers are Philox 4x32-10 (Salmon et al., 2011) with
the Box-Muller transform: counter (i // 4, stream, 0, 0), key seed, and four normals from the four words.
`advbnn.fast.triton_kernels` computes the same numbers on the GPU.
"""

import torch
from torch import Tensor

from advbnn.errors import ArgumentError

_ROUND_A, _ROUND_B = 0xD2511F53, 0xCD9E8D57
_KEY_A, _KEY_B = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF


def normals(
    count: int, *, seed: int | Tensor, stream: int | Tensor = 0, start: int = 0, device: torch.device | str = "cpu"
) -> Tensor:
    """Normals `start` to `start + count` of a stream, in float32.

    A seed has up to 64 bits, and 2^31 independent streams. Both may be int64 tensors of one number, on which a compiler
    does not specialize. `start` must be a multiple of 4.
    """
    if start % 4:
        raise ArgumentError(f"start must be a multiple of 4, got {start}: a counter gives four normals")
    counter = torch.arange(start // 4, start // 4 + -(-count // 4), device=device, dtype=torch.int64)
    words = _philox(counter, stream, seed)
    first, second = _box_muller(words[0], words[1]), _box_muller(words[2], words[3])
    return torch.stack([*first, *second], 1).reshape(-1)[:count]


def _philox(counter: Tensor, stream: int | Tensor, seed: int | Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    zero = torch.zeros_like(counter)
    c0, c1, c2, c3 = counter & _WORD, zero + (stream & _WORD), zero, zero
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(10):
        (high_a, low_a), (high_b, low_b) = _wide_product(c0, _ROUND_A), _wide_product(c2, _ROUND_B)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + _KEY_A) & _WORD, (k1 + _KEY_B) & _WORD
    return c0, c1, c2, c3


def _wide_product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low word of a 32 x 32 bit product, whose 64 bits a signed integer cannot hold."""
    low = a * (b & 0xFFFF)
    high = a * (b >> 16) + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def _box_muller(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    # never exactly zero, where the logarithm is infinite
    radius = (-2 * _uniform(first).clamp_min(1e-7).log()).sqrt()
    angle = 6.283185307179586 * _uniform(second)
    return radius * angle.cos(), radius * angle.sin()


def _uniform(word: Tensor) -> Tensor:
    """A word as a number in [0, 1): its 31 bits below the sign, folded, times the largest scale that stays below 1."""
    signed = torch.where(word >= 2**31, word - 2**32, word)
    return torch.where(signed < 0, -signed - 1, signed).to(torch.float32) * 4.6566127342e-10
