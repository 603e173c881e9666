"""Datasets: a name or a folder becomes `Splits`, and `Batches` are a pure function of seed, epoch and step.

Images are uint8 in memory, on the device that trains, and batches are float32 in [0, 1]. A dataset that differs from
the published files never has their name.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from advbnn.data.augment import Augmentation as Augmentation
from advbnn.data.augment import HorizontalFlip as HorizontalFlip
from advbnn.data.augment import RandomCrop as RandomCrop
from advbnn.data.augment import RandomResizedCrop as RandomResizedCrop
from advbnn.data.augment import named_augmentation as named_augmentation
from advbnn.data.augment import to_float as to_float
from advbnn.data.augment import usual_augmentation as usual_augmentation
from advbnn.data.batches import Batches as Batches
from advbnn.data.cifar10 import load_cifar10 as load_cifar10
from advbnn.data.cutmix import CutMix as CutMix
from advbnn.data.digits import load_digits as load_digits
from advbnn.data.download import fetch as fetch
from advbnn.data.folder import load_folder as load_folder
from advbnn.data.imagenet143 import load_imagenet143 as load_imagenet143
from advbnn.data.imageset import Examples as Examples
from advbnn.data.imageset import ImageSet as ImageSet
from advbnn.data.imageset import TensorSet as TensorSet
from advbnn.data.imageset import from_tensors as from_tensors
from advbnn.data.splits import Splits as Splits
from advbnn.data.stl10 import load_stl10 as load_stl10
from advbnn.data.streams import Stream as Stream
from advbnn.data.streams import stream as stream
from advbnn.errors import ArgumentError, unknown
from advbnn.errors import DataError as DataError
from advbnn.lazy import submodules
from advbnn.names import DATA_SETS


def check_source(source: str | Path, argument: str = "source") -> None:
    """Refuse what is neither the name of a dataset nor a folder; `argument` is the caller's name for it."""
    if source not in DATA_SETS and not (isinstance(source, str | Path) and os.path.isdir(source)):
        raise ArgumentError(f"{unknown(argument, str(source), DATA_SETS)} (and there is no image folder of this name)")


def load(
    source: str | Path,
    root: str | Path | None = None,
    *,
    size: int | None = None,
    cache: str | Path | None = None,
    verify: bool = True,
) -> Splits[ImageSet]:
    """Loads a dataset into memory, by its name, or an image folder by its path.

    Args:
        source: "digits" (included in the package), "cifar10", "stl10", "imagenet143", or a folder.
        root: the folder with the files of a named dataset; the environment variable `ADVBNN_DATA` if None.
        size: image folders and imagenet143: resize every image to a centred square of this many pixels.
        cache: image folders and imagenet143: a folder for the decoded images.
        verify: cifar10 and stl10: refuse files that are not the published ones.
    """
    if source not in DATA_SETS:
        check_source(source)
        return load_folder(source, size=size, cache=cache)
    if source != "imagenet143" and (size is not None or cache is not None):
        raise ArgumentError(f"size and cache apply to image folders and imagenet143, not to {source!r}; leave them out")
    if source == "digits":
        return load_digits()
    root = root or os.environ.get("ADVBNN_DATA")
    if root is None:
        remedy = "pass it (--root FOLDER; advbnn train: --set root=FOLDER) or set the environment variable ADVBNN_DATA"
        if source != "imagenet143":
            remedy += f"; `advbnn data download {source} --root FOLDER` fetches them"
        raise ArgumentError(f"root is needed for {source!r}: the folder with its files; {remedy}")
    if source == "imagenet143":
        return load_imagenet143(root, size=size or 64, cache=cache)
    return (load_cifar10 if source == "cifar10" else load_stl10)(root, verify=verify)


if not TYPE_CHECKING:  # type checkers know the submodules
    __getattr__ = submodules(__name__)
