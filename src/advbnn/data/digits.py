"""Handwritten digits, included in the package: 1,797 images of 8x8 pixels, ten classes.

Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, UCI, 1998); see `digits.LICENSE.txt`.
Small enough to train every defence on a CPU.
"""

from importlib.resources import files

import numpy as np
import torch

from advbnn.data.imageset import ImageSet
from advbnn.data.splits import Splits


def load_digits() -> Splits[ImageSet]:
    """The first 1,297 images to train on, the last 500 to test on.

    The source lists one filled-in form after another, each with about 130 images by one writer, and nothing is shuffled
    here. Except for ten images, the test set comes from forms, and mostly from writers, that are not in the training
    set, so it is harder than a random split.

    The 17 grey levels 0..16 of the source become `round(v * 255 / 16)`.
    """
    with files("advbnn.data").joinpath("digits.npz").open("rb") as file, np.load(file) as stored:
        levels, labels = stored["images"], stored["labels"]
    images = torch.from_numpy(np.rint(levels * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    digits = torch.from_numpy(labels.astype(np.int64))
    rows = slice(None, 1297), slice(1297, None)
    return Splits(*(ImageSet(images[part], digits[part], tuple("0123456789"), "digits") for part in rows))
