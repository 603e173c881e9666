"""Image files for tests."""

from pathlib import Path

import numpy as np


def save(path: Path, pixels: np.ndarray | int = 0, size: int = 12) -> None:
    """Writes an image; a number is the grey of a square of `size` pixels."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(pixels, int):
        pixels = np.full((size, size, 3), pixels, np.uint8)
    Image.fromarray(pixels).save(path)
