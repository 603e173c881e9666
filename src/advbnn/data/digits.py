"""Handwritten digits, shipped with the package: 1,797 images of 8x8 pixels, ten classes.

Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, UCI, 1998); see `digits.LICENSE.txt`.
Small enough to train every defence on a CPU, real enough for robustness to mean something.
"""

from importlib.resources import files

import numpy as np
import torch

from advbnn.data.imageset import ImageSet
from advbnn.data.splits import Splits

CLASSES = tuple("0123456789")
TRAIN_IMAGES = 1297  # of 1,797; the last 500 are the test set


def load_digits() -> Splits[ImageSet]:
    """The first 1,297 images to train on, the last 500 to test on.

    The source lists one filled-in form after another, about 130 images each by one writer, and nothing is
    shuffled here. But for ten images of the form in which the cut falls, the test set comes from forms, and
    mostly from hands, that training has not seen: harder, and more honest, than a random split.

    The source's 17 grey levels 0..16 become `round(v * 255 / 16)`.
    """
    with (
        files("advbnn.data").joinpath("digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as stored,
    ):
        levels, labels = stored["images"], stored["labels"]
    images = torch.from_numpy(np.rint(levels * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    digits = torch.from_numpy(labels.astype(np.int64))

    def part(rows: slice) -> ImageSet:
        return ImageSet(images=images[rows], labels=digits[rows], classes=CLASSES, name="digits")

    return Splits(train=part(slice(None, TRAIN_IMAGES)), test=part(slice(TRAIN_IMAGES, None)))
