"""Image files and archives for tests."""

import tarfile
from pathlib import Path

import numpy as np


def save(path: Path, pixels: np.ndarray | int = 0, size: int = 12) -> None:
    """Writes an image; a number is the grey of a square of `size` pixels."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(pixels, int):
        pixels = np.full((size, size, 3), pixels, np.uint8)
    Image.fromarray(pixels).save(path)


def pack(folder: Path, archive: Path) -> Path:
    """Writes a folder into an archive, as publishers do."""
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    return archive
