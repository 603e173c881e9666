"""ImageNet-143: the classes 151 to 293 of ILSVRC 2012 (dogs, wolves, foxes, cats), at 64x64.

143 classes, 180,373 training images (the paper's "18,073" lacks a digit) and 50 test images per class.
"""

from pathlib import Path

from advbnn.data.folder import class_folders, list_images, read_images
from advbnn.data.imageset import ImageSet
from advbnn.data.splits import Splits
from advbnn.errors import data_error

FIRST, LAST = 151, 293  # positions among the 1,000 classes sorted by WordNet id, both included
COUNT = LAST - FIRST + 1
FIRST_ID, LAST_ID = "n02085620", "n02130308"  # Chihuahua, cheetah
LAYOUT = (
    "expected train/<WordNet id>/<image> and val/<WordNet id>/<image> with the 1,000 classes of ILSVRC 2012 "
    f"or only the {COUNT} from {FIRST_ID} to {LAST_ID}"
)


def load_imagenet143(root: Path | str, *, size: int = 64, cache: Path | str | None = None) -> Splits[ImageSet]:
    """ImageNet-143 from an ImageNet tree.

    Every image is resized once to a centred square; the result is cached and checked when it is loaded again.

    Args:
        root: the folder that contains `train` and `val`, or a folder `imagenet` with them.
        size: the side length in pixels.
        cache: a folder for the resized images (2.3 GB at 64x64); `advbnn-cache` in `root` if None.
    """
    root = Path(root)
    if not (root / "train").is_dir() and (root / "imagenet").is_dir():
        root = root / "imagenet"
    train, test = (list_images(root / split, _classes(root / split)) for split in ("train", "val"))
    if train.classes != test.classes:
        raise data_error(test.folder, f"its classes differ from those in {train.folder}", LAYOUT)
    folder = cache or root / "advbnn-cache"
    return Splits(*(read_images(listing, size, "imagenet143", folder) for listing in (train, test)))


def _classes(folder: Path) -> tuple[str, ...]:
    classes = class_folders(folder)
    if len(classes) == 1000:
        classes = classes[FIRST : LAST + 1]
    if len(classes) != COUNT or (classes[0], classes[-1]) != (FIRST_ID, LAST_ID):
        ends = f", from {classes[0]} to {classes[-1]}" if classes else ""
        raise data_error(folder, f"contains {len(classes)} class folders{ends}", LAYOUT)
    return classes
