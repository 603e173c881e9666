"""Small images as data URIs, so that a page needs no other file."""

import base64
import struct
import zlib

import torch
from torch import Tensor

from advbnn.errors import ArgumentError

_GREY, _COLOUR = 0, 2


def png(pixels: Tensor) -> bytes:
    """A PNG file of an image [1 or 3, height, width] with values in [0, 1]."""
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or 0 in pixels.shape:
        raise ArgumentError(f"pixels must be an image [1 or 3, height, width], got shape {list(pixels.shape)}")
    channels, height, width = pixels.shape
    levels = (pixels.detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8)
    rows = levels.permute(1, 2, 0).reshape(height, width * channels)
    # every row is preceded by the number of its filter: 0, as it is
    filtered = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows], 1)
    header = struct.pack(">IIBBBBB", width, height, 8, _GREY if channels == 1 else _COLOUR, 0, 0, 0)
    body = zlib.compress(filtered.numpy().tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def data_uri(pixels: Tensor) -> str:
    """The image as the address of itself."""
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
