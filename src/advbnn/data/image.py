"""Image files to pixels."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from advbnn.errors import ArgumentError, DataError, data_error, explain_missing_package

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The formats that are opened, whatever the name of the file: Pillow gives others, such as EPS, to outside programs."""

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
_CHUNK = 64  # images per task: enough to hide the cost of a task, few enough for steady progress
_SHOWN = 5  # unreadable images named in one error


def decode(path: Path, size: int | None = None) -> np.ndarray:
    """One image as uint8 [3, height, width].

    With a `size` the largest centred square is resized to size x size by Pillow's bilinear filter. It averages over
    the whole area of a new pixel, so it does not alias, does not ring beyond the range of the pixels (unlike Lanczos),
    and is smooth when a small image is enlarged (unlike box).
    """
    with explain_missing_package("reading image files needs Pillow: pip install 'advbnn[data]'"):
        from PIL import Image
    try:
        with Image.open(path, formats=FORMATS) as file:
            mode = file.mode
            deep = mode == "F" or mode.startswith("I")
            image = file if deep else file.convert("RGB")
    except Exception as error:  # each decoder raises errors of its own
        raise data_error(path, f"is not a readable image ({error})", "replace or remove the file") from error
    if deep:  # Pillow clips such pixels at 255 instead of scaling them, which leaves a white image
        problem = f"has pixels of more than 8 bits (mode {mode}), whose range is not stored in the file"
        raise data_error(path, problem, "save it with 8 bits per channel, scaled to 0..255")
    if size is not None:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = image.crop((left, top, left + side, top + side))
        image = square.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def images_below(folder: Path) -> Iterator[Path]:
    """The images in a folder and below it, but for hidden ones and those in hidden folders (.ipynb_checkpoints)."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in files if name.lower().endswith(SUFFIXES) and name[0] != ".")


def image_files(paths: Sequence[Path]) -> list[Path]:
    """The files, and of every folder all images in it and below it that are not hidden, in the order of their names."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ArgumentError(f"there is no such file or folder: {path}")
        inside = sorted(images_below(path))
        if path.is_dir() and not inside:
            raise ArgumentError(f"{path} is a folder without images; expected files such as {', '.join(SUFFIXES)}")
        found += inside if path.is_dir() else [path]
    return found


def read_inputs(paths: Sequence[Path], shape: tuple[int, ...]) -> Tensor:
    """Image files as inputs in [0, 1] of the given shape: centred squares, resized; grey for a single channel."""
    channels, height, width = shape
    if height != width or channels not in (1, 3):
        raise ArgumentError(f"images are read as grey or colour squares, but the model takes inputs of shape {shape}")
    pixels = torch.from_numpy(np.stack([decode(path, height) for path in paths])).float() / 255
    if channels == 1:
        # luma by ITU-R BT.601, which does not change grey images
        pixels = (pixels * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True).clamp(0, 1)
    return pixels


def decode_all(paths: Sequence[Path], size: int | None, report: Callable[[int, int], None]) -> np.ndarray:
    """Every image, uint8 [N, 3, height, width], decoded by one thread per processor.

    All of them are read before an error is raised, so that it names every unreadable image.
    """
    first = decode(paths[0], size)
    images = np.empty((len(paths), *first.shape), np.uint8)
    problems: list[str] = []

    def decode_chunk(start: int) -> None:
        for row in range(start, min(start + _CHUNK, len(paths))):
            try:
                pixels = decode(paths[row], size)
                if pixels.shape != first.shape:
                    problem = f"has shape {pixels.shape}, {paths[0]} has {first.shape}"
                    raise data_error(
                        paths[row], problem, "give size (--size, size=) to make all of them squares of one size"
                    )
                images[row] = pixels
            except DataError as error:
                problems.append(str(error))

    starts = range(0, len(paths), _CHUNK)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start, _ in zip(starts, pool.map(decode_chunk, starts), strict=True):
            report(min(start + _CHUNK, len(paths)), len(paths))
    if problems:
        rest = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise DataError("\n".join([*sorted(problems)[:_SHOWN], *rest]))
    return images
