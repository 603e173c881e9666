"""Image folders: `ROOT/train/<class>/<image>`, and the same under `test` or `val`."""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from advbnn.data.cache import cached
from advbnn.data.image import SUFFIXES, decode_all, images_below
from advbnn.data.imageset import ImageSet
from advbnn.data.splits import Splits
from advbnn.display.progress import ProgressBar
from advbnn.errors import ArgumentError, data_error
from advbnn.machine.files import explain_file_errors
from advbnn.names import DATA_SETS

LAYOUT = "expected ROOT/train/<class>/<image> and the same under ROOT/test or ROOT/val"


@dataclass(frozen=True)
class Listing:
    """The image files of one split, relative to its folder, in an order that is independent of their classes."""

    folder: Path
    classes: tuple[str, ...]
    files: tuple[str, ...]
    labels: tuple[int, ...]

    def paths(self) -> list[Path]:
        return [self.folder / file for file in self.files]

    def identity(self, size: int | None) -> dict[str, object]:
        """What the decoded images depend on, for a cache: files, their sizes and times, and the resizing."""
        stats = [path.stat() for path in self.paths()]  # times, too, as a bitmap keeps its size whatever is drawn on it
        lines = [f"{file}\0{s.st_size}\0{s.st_mtime_ns}\n" for file, s in zip(self.files, stats, strict=True)]
        listing = hashlib.sha256(os.fsencode("".join(lines))).hexdigest()
        recipe = f"RGB, centre square, bilinear with antialiasing, {size}x{size}"
        return {"recipe": recipe, "images": len(self.files), "listing": listing}


def class_folders(folder: Path) -> tuple[str, ...]:
    """The names of the class folders, sorted."""
    if not folder.is_dir():
        raise data_error(folder, "there is no such folder", LAYOUT)
    with explain_file_errors(folder, "cannot be read", "check its permissions"):
        return tuple(sorted(e.name for e in os.scandir(folder) if e.is_dir() and not e.name.startswith(".")))


def list_images(folder: Path, classes: Sequence[str] | None = None) -> Listing:
    """The images under the class folders of a split (all of them, or the given ones), at any depth."""
    classes = class_folders(folder) if classes is None else tuple(classes)
    if not classes:
        raise data_error(folder, "contains no class folders", LAYOUT)
    found: list[tuple[str, int]] = []
    for label, name in enumerate(classes):
        images = list(images_below(folder / name))
        if not images:
            problem = f"contains no image ({', '.join(SUFFIXES)})"
            raise data_error(folder / name, problem, "add some or remove the folder")
        found += [(path.relative_to(folder).as_posix(), label) for path in images]
    # sorted by class, the first images would all be of one class
    found.sort(key=lambda image: hashlib.sha256(os.fsencode(image[0])).digest())
    files, labels = zip(*found, strict=True)
    return Listing(folder, classes, files, labels)


def load_folder(root: Path | str, *, size: int | None = None, cache: Path | str | None = None) -> Splits[ImageSet]:
    """An image folder, decoded into memory.

    If both `ROOT/test` and `ROOT/val` exist, `val` is the validation set; if only one does, it is the test set. The
    class folders, sorted by name, are the classes, the same in every split.

    Args:
        root: the folder of the splits.
        size: resize every image to a centred square of this many pixels; if None, all must have the same size.
        cache: a folder for the decoded images, useful from about ten thousand images on; needs `size`.
    """
    if cache is not None and size is None:
        raise ArgumentError(f"cache={str(cache)!r} needs size=, the side length of the images in the cache")
    root = Path(root)
    train, others = list_images(root / "train"), _list_held_out(root)
    for listing in others:
        differing = sorted(set(listing.classes) ^ set(train.classes))
        if differing:
            problem = f"its classes differ from those in {train.folder}: {', '.join(differing[:5])} only in one"
            raise data_error(listing.folder, problem, "give every split the same class folders")
    return Splits(*(read_images(listing, size, _name(root), cache) for listing in (train, *others)))


def load_held_out(root: Path | str, *, size: int | None = None) -> tuple[ImageSet, ImageSet | None]:
    """The test images of an image folder, and its validation images if it has both; training images are not read.

    A folder of class folders is a test set by itself. Other arguments as for `load_folder`.
    """
    root = Path(root)
    alone = not any((root / split).is_dir() for split in ("train", "test", "val"))
    listings = [list_images(root)] if alone else _list_held_out(root)
    test, *validation = (read_images(listing, size, _name(root), None) for listing in listings)
    return test, validation[0] if validation else None


def _name(root: Path) -> str:
    """The name of the folder, unless that is the name of a published data set."""
    name = root.resolve().name
    return f"folder-{name}" if re.split(r"[\[\s]", name)[0] in DATA_SETS else name


def _list_held_out(root: Path) -> list[Listing]:
    found = [list_images(root / split) for split in ("test", "val") if (root / split).is_dir()]
    if not found:
        raise data_error(root, "contains neither a test nor a val folder", LAYOUT)
    return found


def read_images(listing: Listing, size: int | None, name: str, cache: Path | str | None) -> ImageSet:
    """The listed images in memory, from a cache if there is one."""
    split = listing.folder.name

    def build() -> np.ndarray:
        with ProgressBar(f"{name}: decoding {split}", "images") as bar:
            return decode_all(listing.paths(), size, bar.update)

    if cache is None:
        images = build()
    else:
        images = cached(Path(cache) / f"{name}-{size}-{split}.npy", listing.identity(size), build)
    return ImageSet(torch.from_numpy(images), torch.tensor(listing.labels), listing.classes, name)
