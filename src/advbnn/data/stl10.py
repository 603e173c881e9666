"""The labelled images of STL-10 in the publisher's binary layout, unpacked or in the archive.

https://cs.stanford.edu/~acoates/stl10/
"""

from pathlib import Path

import numpy as np
import torch

from advbnn.data.archive import check_sum, locate, read_files
from advbnn.data.imageset import ImageSet
from advbnn.data.splits import Splits
from advbnn.errors import data_error

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
PIXELS = 3 * 96 * 96
OFFICIAL_SIZES = (5000, 8000)

ARCHIVE = "stl10_binary.tar.gz"
ARCHIVE_URL = f"http://ai.stanford.edu/~acoates/stl10/{ARCHIVE}"
ARCHIVE_CHECKSUM = "md5:91f7769df0f17e558f3565bffb0c7dfb"
FILES = {
    "train_X.bin": "md5:918c2871b30a85fa023e0c44e0bee87f",
    "train_y.bin": "md5:5a34089d4802c674881badbb80307741",
    "test_X.bin": "md5:7f263ba9f9e0b06b93213547f721ac82",
    "test_y.bin": "md5:36f9794fa4beb8a2c72628de14fa638e",
}
REMEDY = "download STL-10 with `advbnn data download stl10 --root DIR`"


def load_stl10(root: Path | str, *, verify: bool = True) -> Splits[ImageSet]:
    """The labelled images of STL-10 from `root`, which contains `stl10_binary` or `stl10_binary.tar.gz`.

    The number of images follows from the size of the files. Only the publisher's 5,000 training and 8,000 test images,
    with the published checksums, are called `stl10`. Any other number is `stl10-subset`, so that its results cannot be
    mistaken for those on STL-10.

    Without `verify` no checksum is compared, and a set of the official size is called `stl10-unverified`.
    """
    source = locate(Path(root), ("stl10_binary", ARCHIVE), REMEDY)
    remedy = f"{REMEDY}, or pass verify=False for your own files"
    if verify and source.is_file():
        check_sum(source, source, ARCHIVE_CHECKSUM, remedy)
    contents = read_files(source, FILES, REMEDY)
    train, test = (_parse(source, split, contents) for split in ("train", "test"))
    official = (len(train[1]), len(test[1])) == OFFICIAL_SIZES
    name = "stl10-subset" if not official else "stl10" if verify else "stl10-unverified"
    if official and verify:
        for file, checksum in FILES.items():
            check_sum(source / file, contents[file], checksum, remedy)
    return Splits(train=ImageSet(*train, CLASSES, name), test=ImageSet(*test, CLASSES, name))


def _parse(source: Path, split: str, contents: dict[str, bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    """Each channel of an image is stored column by column; labels start at 1."""
    pixels, labels = contents[f"{split}_X.bin"], contents[f"{split}_y.bin"]
    if len(pixels) != len(labels) * PIXELS:
        problem = f"{len(pixels)} bytes are not {PIXELS} for each of {len(labels)} labels"
        raise data_error(source / f"{split}_X.bin", problem, REMEDY)
    columns_first = np.frombuffer(pixels, np.uint8).reshape(-1, 3, 96, 96)
    images = np.ascontiguousarray(columns_first.transpose(0, 1, 3, 2))
    return torch.from_numpy(images), torch.from_numpy(np.frombuffer(labels, np.uint8).astype(np.int64) - 1)
