"""Which images were classified correctly, as base64 text with one bit per image: 1.7 KB for 10,000 images."""

import base64

import numpy as np
import torch
from torch import Tensor

from advbnn.errors import ArgumentError


def pack(right: Tensor) -> str:
    """One bool per image as text: eight images per byte, the first in the highest bit, in base64."""
    return base64.b64encode(np.packbits(right.cpu().numpy()).tobytes()).decode()


def unpack(text: str, n: int) -> Tensor:
    """The inverse of `pack` for `n` images."""
    try:
        stored = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    except ValueError as error:
        raise ArgumentError(f"outcomes must be base64 as `pack` writes it, got {text[:20]!r}: {error}") from error
    if len(stored) != -(-n // 8):
        raise ArgumentError(f"outcomes of {n} images take {-(-n // 8)} bytes, got {len(stored)}")
    return torch.from_numpy(np.unpackbits(stored, count=n)).bool()
