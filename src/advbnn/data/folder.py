"""Image folders: `ROOT/train/<class>/<image>`, and the same under `test` or `val`."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from advbnn.data.cache import cached
from advbnn.data.image import SUFFIXES, decode_all, recipe
from advbnn.data.imageset import Examples, ImageSet
from advbnn.data.splits import Splits
from advbnn.errors import ArgumentError, data_error
from advbnn.progress import progress

LAYOUT = "expected ROOT/train/<class>/<image> and the same under ROOT/test or ROOT/val"
Set = TypeVar("Set", bound=Examples)


@dataclass(frozen=True)
class Listing:
    """The image files of one split, in an order that has nothing to do with their classes.

    Args:
        folder: the split's folder.
        classes: its class folders, in label order.
        files: the images, relative to `folder`.
        labels: the class of each.
        sizes: the bytes of each.
    """

    folder: Path
    classes: tuple[str, ...]
    files: tuple[str, ...]
    labels: tuple[int, ...]
    sizes: tuple[int, ...]

    def fingerprint(self) -> str:
        """SHA-256 of names and sizes: an image added, removed, renamed or rewritten at another size shows."""
        lines = (f"{file}\0{size}\n" for file, size in zip(self.files, self.sizes, strict=True))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def paths(self) -> list[Path]:
        return [self.folder / file for file in self.files]

    def subset(self, rows: Sequence[int]) -> "Listing":
        """The chosen images, in the given order, of the same classes."""
        return Listing(
            self.folder,
            self.classes,
            tuple(self.files[row] for row in rows),
            tuple(self.labels[row] for row in rows),
            tuple(self.sizes[row] for row in rows),
        )


def class_folders(folder: Path) -> tuple[str, ...]:
    """The names of the class folders, sorted."""
    return tuple(sorted(e.name for e in os.scandir(folder) if e.is_dir() and not e.name.startswith(".")))


def list_images(folder: Path, classes: Sequence[str] | None = None) -> Listing:
    """The images under a split's class folders (all of these, or the given ones), at any depth."""
    if not folder.is_dir():
        raise data_error(folder, "there is no such folder", LAYOUT)
    classes = class_folders(folder) if classes is None else tuple(classes)
    if not classes:
        raise data_error(folder, "holds no class folders", LAYOUT)
    found: list[tuple[str, int, int]] = []
    for label, name in enumerate(classes):
        images = sorted(_images_under(folder / name))
        if not images:
            raise data_error(folder / name, f"holds no image ({', '.join(SUFFIXES)})", "add some or remove the folder")
        found += [(path.relative_to(folder).as_posix(), label, path.stat().st_size) for path in images]
    # class after class, the first so many images would be those of a few classes
    found.sort(key=lambda image: hashlib.sha256(image[0].encode()).digest())
    files, labels, sizes = zip(*found, strict=True)
    return Listing(folder, classes, files, labels, sizes)


def _images_under(folder: Path) -> list[Path]:
    return [
        Path(parent, file)
        for parent, _, files in os.walk(folder)
        for file in files
        if file.lower().endswith(SUFFIXES) and not file.startswith(".")
    ]


def load_folder(
    root: Path | str, *, size: int | None = None, cache: Path | str | None = None, name: str | None = None
) -> Splits[ImageSet]:
    """An image folder, decoded into memory.

    With `ROOT/test` and `ROOT/val` both there, `val` becomes the validation set; with one of them, it is the
    test set. The class folders, sorted by name, are the classes, the same in every split.

    Args:
        root: the folder that holds the splits.
        size: make every image a centred square of this many pixels; left out, all must be of one size.
        cache: a folder to keep the decoded images in, worth it from some ten thousand on; needs `size`.
        name: which set this is, for records; left out, the folder's name.
    """
    if cache is not None and size is None:
        raise ArgumentError(f"cache={str(cache)!r} needs size=, the pixels of a side that the cache holds")
    name = name or Path(root).resolve().name

    def images(listing: Listing) -> ImageSet:
        return read_images(listing, size, name, None if cache is None else Path(cache))

    return each_split(root, images)


def each_split(root: Path | str, make: Callable[[Listing], Set]) -> Splits[Set]:
    """`make` of the listing of every split that `root` holds, listed and compared before anything is read."""
    root = Path(root)
    train = list_images(root / "train")
    found = [list_images(root / split) for split in ("test", "val") if (root / split).is_dir()]
    if not found:
        raise data_error(root, "holds neither a test nor a val folder", LAYOUT)
    for listing in found:
        differing = sorted(set(listing.classes) ^ set(train.classes))
        if differing:
            raise data_error(
                listing.folder,
                f"has not the classes of {train.folder}: {', '.join(differing[:5])} in one of them only",
                "give every split the same class folders",
            )
    train_set, *others = [make(listing) for listing in (train, *found)]
    return Splits(train_set, *others)


def read_images(listing: Listing, size: int | None, name: str, cache: Path | None) -> ImageSet:
    """The listed images in memory, through a cache if there is one."""
    split = listing.folder.name

    def build() -> np.ndarray:
        with progress(f"{name}: decoding {split}", "images") as report:
            return decode_all(listing.paths(), size, report)

    if cache is None:
        images = build()
    else:
        identity = {
            "recipe": recipe(size),
            "images": len(listing.files),
            "listing": listing.fingerprint(),
            "written": _when_written(listing),
        }
        images = cached(cache / f"{name}-{size}-{split}.npy", identity, build)
    return ImageSet(torch.from_numpy(images), torch.tensor(listing.labels), listing.classes, name)


def _when_written(listing: Listing) -> str:
    """SHA-256 of the times at which the files were written: a bitmap keeps its size whatever is drawn on it."""
    times = (str(path.stat().st_mtime_ns) for path in listing.paths())
    return hashlib.sha256("\n".join(times).encode()).hexdigest()
