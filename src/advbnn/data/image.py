"""Image files to pixels."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from advbnn.errors import DataError, MissingPackageError, data_error
from advbnn.progress import Report

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
REMEDY = "replace or remove the file"
_CHUNK = 64  # images to a task: enough to hide the cost of a task, few enough for steady progress


def recipe(size: int | None) -> str:
    """What `decode` does, in words; part of the identity of every cache."""
    return "RGB" if size is None else f"RGB, centre square, bilinear with antialiasing, {size}x{size}"


def decode(path: Path, size: int | None = None) -> np.ndarray:
    """One image as uint8 [3, height, width].

    With a `size` the largest centred square is resized to size x size. The filter is Pillow's bilinear,
    which averages over the whole area that a new pixel covers: it does not alias, it does not ring beyond
    the range of the pixels (Lanczos does), and it is smooth when a small image is enlarged (box is not).
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("reading image files needs Pillow: pip install 'advbnn[data]'") from error
    try:
        with Image.open(path) as file:
            _check_depth(path, file.mode)
            image = file.convert("RGB")
    except DataError:
        raise
    except FileNotFoundError:
        raise data_error(path, "there is no such file", "restore it") from None
    except Exception as error:  # each format's decoder fails in ways of its own
        raise data_error(path, f"is not a readable image ({error})", REMEDY) from error
    if size is not None:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = image.crop((left, top, left + side, top + side))
        image = square.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def _check_depth(path: Path, mode: str) -> None:
    """Refuse deep pixels: Pillow cuts them off at 255 instead of scaling them, which leaves a white image."""
    if mode == "F" or mode.startswith("I"):
        raise data_error(
            path,
            f"holds pixels of more than 8 bits (mode {mode}), whose range nothing in the file tells",
            "save it with 8 bits a channel, scaled to 0..255",
        )


def decode_all(paths: Sequence[Path], size: int | None, report: Report) -> np.ndarray:
    """Every image, uint8 [N, 3, height, width], decoded by as many threads as there are processors.

    Reads all of them before it complains, so that one error names every unreadable image.
    """
    first = decode(paths[0], size)
    images = np.empty((len(paths), *first.shape), np.uint8)
    problems: list[str] = []

    def decode_chunk(start: int) -> None:
        for row in range(start, min(start + _CHUNK, len(paths))):
            try:
                pixels = decode(paths[row], size)
                if pixels.shape != first.shape:
                    raise data_error(
                        paths[row],
                        f"is of shape {pixels.shape}, {paths[0]} of {first.shape}",
                        "pass size= to make all of them squares of one size",
                    )
                images[row] = pixels
            except DataError as error:
                problems.append(str(error))

    starts = range(0, len(paths), _CHUNK)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start, _ in zip(starts, pool.map(decode_chunk, starts), strict=True):
            report(min(start + _CHUNK, len(paths)), len(paths))
    if problems:
        raise DataError(summary(problems))
    return images


def summary(problems: Sequence[str], shown: int = 5) -> str:
    """The first few problems, one to a line, and how many more there are."""
    rest = [f"and {len(problems) - shown} more"] if len(problems) > shown else []
    return "\n".join([*sorted(problems)[:shown], *rest])
