from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from advbnn.data import DataError, ImageSet, Splits, load, load_stl10, stl10
from advbnn.data.archive import digest
from images import pack

Folder = tuple[Path, np.ndarray, np.ndarray]


def test_the_published_files(published: Callable[[str], Splits[ImageSet]]) -> None:
    stl10 = published("stl10")
    official = (len(stl10.train), len(stl10.test)) == (5000, 8000)
    assert (stl10.train.shape, stl10.train.name) == ((3, 96, 96), "stl10" if official else "stl10-subset")


def test_columns_become_rows_and_labels_count_from_zero(stl_folder: Folder) -> None:
    folder, images, labels = stl_folder
    archive = pack(folder, folder.parent / "archives" / "stl10_binary.tar.gz")
    with pytest.raises(DataError, match="its MD5 is .* is 91f7769d"):
        load("stl10", archive)
    for root, verify in ((folder, True), (folder.parent, True), (archive.parent, False)):
        loaded = load("stl10", root, verify=verify)
        assert torch.equal(loaded.train.images, torch.from_numpy(images))
        assert loaded.train.labels.tolist() == (labels.astype(int) - 1).tolist()
        assert (len(loaded.test), loaded.train.name) == (2, "stl10-subset")


def test_the_official_numbers_must_have_the_official_checksums(
    stl_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stl_folder[0]
    monkeypatch.setattr(stl10, "OFFICIAL_SIZES", (4, 2))
    with pytest.raises(DataError, match=r"train_X\.bin: .*MD5 .*918c2871"):
        load_stl10(folder)
    assert load_stl10(folder, verify=False).test.name == "stl10-unverified"
    monkeypatch.setattr(stl10, "FILES", {f: f"md5:{digest(folder / f, 'md5')}" for f in stl10.FILES})
    assert load_stl10(folder).test.name == "stl10"


def test_damaged_files(stl_folder: Folder) -> None:
    folder = stl_folder[0]
    (folder / "test_y.bin").write_bytes(bytes([1, 0]))
    with pytest.raises(ValueError, match="label -1 .*example 1"):
        load_stl10(folder)
    (folder / "train_y.bin").write_bytes(bytes([1, 2, 3]))
    with pytest.raises(DataError, match=r"train_X\.bin: .* 3 labels"):
        load_stl10(folder)
