"""Tiny datasets, written in the layouts of their publishers."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from advbnn.data import ImageSet, Splits, load
from images import save

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
Batches = dict[str, tuple[np.ndarray, np.ndarray]]


@pytest.fixture
def published() -> Callable[[str], Splits[ImageSet]]:
    """Loads the published files of a dataset, if the environment variable ADVBNN_DATA names their folder."""

    def load_or_skip(name: str) -> Splits[ImageSet]:
        try:
            return load(name)
        except ValueError as error:
            if "ADVBNN_DATA" in os.environ and "has none of" not in str(error):
                raise
            pytest.skip(str(error))

    return load_or_skip


@pytest.fixture
def cifar_batches() -> Batches:
    """Three images [3, 3, 32, 32] with labels for each of the six batches."""
    rng = np.random.default_rng(0)
    return {
        name: (rng.integers(0, 256, (3, 3, 32, 32), np.uint8), rng.integers(0, 10, 3).astype(np.uint8))
        for name in BATCHES
    }


@pytest.fixture
def cifar_binary(tmp_path: Path, cifar_batches: Batches) -> Path:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, (images, labels) in cifar_batches.items():
        records = np.concatenate([labels[:, None], images.reshape(3, -1)], axis=1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


@pytest.fixture
def cifar_pickled(tmp_path: Path, cifar_batches: Batches) -> Callable[[int], Path]:
    """Writes the Python layout with a given pickle protocol."""

    def write(protocol: int = 2) -> Path:
        folder = tmp_path / "cifar-10-batches-py"
        folder.mkdir()
        for name, (images, labels) in cifar_batches.items():
            batch = {b"batch_label": b"x", b"labels": labels.tolist(), b"data": images.reshape(3, -1)}
            (folder / name).write_bytes(pickle.dumps(batch, protocol))
        return folder

    return write


@pytest.fixture
def stl_folder(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """The folder, its four training images [4, 3, 96, 96] in row order, their labels from 1; two test images."""
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, (4, 3, 96, 96), np.uint8), np.array([1, 10, 3, 3], np.uint8)
    for split, count in (("train", 4), ("test", 2)):
        (folder / f"{split}_X.bin").write_bytes(images[:count].transpose(0, 1, 3, 2).tobytes())
        (folder / f"{split}_y.bin").write_bytes(labels[:count].tobytes())
    return folder, images, labels


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """train: 2 classes of 5 PNG images of 12x12; test: 2 of each; each image of one grey, its number times ten."""
    pytest.importorskip("PIL.Image")
    root, grey = tmp_path / "pets", 0
    for split, count in (("train", 5), ("test", 2)):
        for name in ("cat", "dog"):
            for i in range(count):
                save(root / split / name / f"{i}.png", grey := grey + 10)
    return root
