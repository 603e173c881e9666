"""From a drawing to an input of a network."""

import base64
import io

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, pad

from advbnn.errors import ArgumentError

_PEN = 0.1  # fainter is the soft edge of a stroke


def ink_of(data_uri: str) -> Tensor:
    """The opacity in [0, 1] of a PNG that the browser sends as a data URI, [height, width]."""
    from PIL import Image

    content = base64.b64decode(data_uri.partition(",")[2])
    with Image.open(io.BytesIO(content), formats=("PNG",)) as file:
        alpha = np.array(file.convert("RGBA").getchannel("A"))
    return torch.from_numpy(alpha).float() / 255


def drawn_input(ink: Tensor, shape: tuple[int, ...], light_on_dark: bool = True) -> Tensor:
    """A drawing, ink in [0, 1] of shape [height, width], as an image [channels, height, width] in [0, 1].

    For a network of grey images the ink is centred and fills the image, as in data sets of characters. Each pixel is
    the mean over its area.
    """
    rows, columns = (ink > _PEN).any(1).nonzero(), (ink > _PEN).any(0).nonzero()
    if not len(rows):
        raise ArgumentError("drawing is empty; draw something first")
    channels, size = shape[0], (shape[1], shape[2])
    if channels == 1:
        ink = ink[int(rows[0]) : int(rows[-1]) + 1, int(columns[0]) : int(columns[-1]) + 1]
        high, wide = ink.shape
        left, top = max(0, high - wide), max(0, wide - high)
        ink = pad(ink, (left // 2, left - left // 2, top // 2, top - top // 2))
    small = adaptive_avg_pool2d(ink[None], size)
    return (small if light_on_dark else 1 - small).expand(channels, *size).clone()
