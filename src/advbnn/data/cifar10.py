"""CIFAR-10 in the publisher's Python and binary layouts, unpacked or in the archive.

https://www.cs.toronto.edu/~kriz/cifar.html
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from advbnn.data.archive import check_sum, locate, read_files
from advbnn.data.imageset import ImageSet
from advbnn.data.splits import Splits
from advbnn.errors import data_error

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

ARCHIVE_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVES = {
    "cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a",
    "cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530",
}
PICKLES = {
    "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
    "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
    "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "md5:40351d587109b95175f43aff81a1287e",
}
BINARIES = {
    "data_batch_1.bin": "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "sha1:67eb016db431130d61cd03c7ad570b013799c88c",
}
REMEDY = "download CIFAR-10 with `advbnn data download cifar10 --root DIR`"


def load_cifar10(root: Path | str, *, verify: bool = True) -> Splits[ImageSet]:
    """CIFAR-10 from `root`, which contains one of the publisher's two folders or two archives.

    Args:
        root: the folder that contains `cifar-10-batches-bin`, `cifar-10-batches-py`, `cifar-10-binary.tar.gz` or
            `cifar-10-python.tar.gz`, searched in this order; or one of these.
        verify: refuse anything but the published files. Otherwise files of the same layout with any number of images
            are loaded under the name `cifar10-unverified`.
    """
    layouts = ("cifar-10-batches-bin", "cifar-10-batches-py", *reversed(ARCHIVES))
    source = locate(Path(root), layouts, REMEDY)
    remedy = f"{REMEDY}, or pass verify=False for your own files"
    if verify and source.is_file():
        check_sum(source, source, ARCHIVES[source.name], remedy)
    checksums, parse = (BINARIES, _parse_binary) if "bin" in source.name else (PICKLES, _parse_pickle)
    contents = read_files(source, checksums, REMEDY)
    name = "cifar10" if verify else "cifar10-unverified"
    parts = []
    for file, checksum in checksums.items():
        if verify:
            check_sum(source / file, contents[file], checksum, remedy)
        try:
            pixels, labels = parse(contents[file])
            parts.append((pixels.reshape(len(labels), 3, 32, 32), labels))
        except Exception as error:  # a damaged pickle can raise anything
            problem = f"is not a CIFAR-10 batch ({type(error).__name__}: {error})"
            raise data_error(source / file, problem, REMEDY) from error
    *train, test = parts  # in the order of the tables above

    def images(batches: list[tuple[np.ndarray, np.ndarray]]) -> ImageSet:
        pixels, labels = (torch.from_numpy(np.concatenate(part)) for part in zip(*batches, strict=True))
        return ImageSet(pixels, labels, CLASSES, name)

    return Splits(train=images(train), test=images([test]))


def _parse_binary(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """One label byte, then 3,072 pixel bytes in channel, row, column order, image after image."""
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:], records[:, 0].astype(np.int64)


def _parse_pickle(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """A dictionary with `data`, uint8 [n, 3072], and `labels`, a list of n integers."""
    batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    # The publisher's Python 2 wrote byte strings as keys; Python 3 writes text.
    batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    return batch["data"], np.asarray(batch["labels"], np.int64)


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed")
    return text.encode("latin1")


def _dtype(code: object, align: object = False, copy: object = False) -> "np.dtype[Any]":
    # The published files pass 0 and 1 for the two flags, which NumPy 2.4 deprecates.
    return np.dtype(code.decode() if isinstance(code, bytes) else code, bool(align), bool(copy))  # type: ignore[call-overload, no-any-return]


class _ArraysOnly(pickle.Unpickler):
    """Unpickles dictionaries, lists, strings, numbers and arrays, and refuses everything else.

    A pickle is a program. Without the checksum, this class makes sure that it can do no harm.
    """

    _array = np.empty(0, np.uint8)
    _allowed = {  # noqa: RUF012
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): _dtype,
        ("_codecs", "encode"): _latin1,
        # Taken from an array, because NumPy 2 moved them and warns at the old address.
        ("numpy.core.multiarray", "_reconstruct"): _array.__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): _array.__reduce__()[0],
        ("numpy.core.numeric", "_frombuffer"): _array.__reduce_ex__(5)[0],
        ("numpy._core.numeric", "_frombuffer"): _array.__reduce_ex__(5)[0],
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it uses {module}.{name}, which no CIFAR-10 batch needs")
        return self._allowed[module, name]
