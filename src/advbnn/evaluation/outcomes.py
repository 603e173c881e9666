"""Under how many ensembles each image was classified correctly, as base64 text with few bits per image.

One ensemble takes one bit per image, 1.7 KB for 10,000 images; R ensembles take as many bits as the number R.
"""

import base64

import numpy as np
import torch
from torch import Tensor

from advbnn.errors import ArgumentError


def pack(counts: Tensor, most: int = 1) -> str:
    """One whole number in 0..most per image as text: bits without gaps, the highest first, in base64."""
    bits = counts.cpu().to(torch.int64).numpy()[:, None] >> _places(most) & 1
    return base64.b64encode(np.packbits(bits.astype(np.uint8)).tobytes()).decode()


def unpack(text: str, n: int, most: int = 1) -> Tensor:
    """The inverse of `pack` for `n` images, int64."""
    try:
        stored = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    except ValueError as error:
        raise ArgumentError(f"outcomes must be base64 as `pack` writes it, got {text[:20]!r}: {error}") from error
    places = _places(most)
    if len(stored) != (size := -(-n * len(places) // 8)):
        raise ArgumentError(f"outcomes of {n} images take {size} bytes, got {len(stored)}")
    bits = np.unpackbits(stored, count=n * len(places)).reshape(n, -1)
    return torch.from_numpy((bits.astype(np.int64) << places).sum(1))


def _places(most: int) -> np.ndarray:
    return np.arange(most.bit_length())[::-1]
