import logging
import os
from pathlib import Path

import numpy as np
import pytest

from advbnn.data import DataError, ImageSet, load_folder
from images import save


def load(root: Path, cache: Path) -> ImageSet:
    return load_folder(root, size=6, cache=cache).train


def test_gives_the_same_images_without_decoding(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    direct, first = load_folder(image_folder, size=6).train, load(image_folder, cache)
    monkeypatch.setattr("advbnn.data.folder.decode_all", None)  # decoding again would fail
    assert direct.fingerprint() == first.fingerprint() == load(image_folder, cache).fingerprint()


@pytest.mark.parametrize("damage", ["flip", "remove", "record", "no record"])
def test_a_damaged_cache_is_built_again_with_a_warning(
    image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    cache = tmp_path / "cache"
    expected = load(image_folder, cache).fingerprint()
    store, record = cache / "pets-6-train.npy", cache / "pets-6-train.json"
    content = store.read_bytes()
    if damage == "flip":
        store.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "record":
        record.write_text("{")
    else:
        (store if damage == "remove" else record).unlink()
    with caplog.at_level(logging.WARNING):
        assert load(image_folder, cache).fingerprint() == expected
    assert len(caplog.records) == 1 and "building it again" in caplog.text
    caplog.clear()
    assert load(image_folder, cache).fingerprint() == expected
    assert not caplog.records


def test_new_images_and_a_changed_bitmap_of_the_same_size_are_noticed(
    image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bitmap, cache = image_folder / "train" / "cat" / "new.bmp", tmp_path / "cache"
    assert len(load(image_folder, cache)) == 10
    save(bitmap, 1)
    with caplog.at_level(logging.WARNING):
        assert 1 in load(image_folder, cache).images
    assert "made from other images" in caplog.text
    size, time = bitmap.stat().st_size, bitmap.stat().st_mtime_ns
    save(bitmap, 201)
    os.utime(bitmap, ns=(time + 1, time + 1))  # clocks are coarse, tests are fast
    assert bitmap.stat().st_size == size
    assert 201 in load(image_folder, cache).images


def test_failures_leave_no_files(
    image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with caplog.at_level(logging.WARNING):
        assert len(load(image_folder, tmp_path / "cache")) == 10  # the images are there all the same
    assert "No space left on device" in caplog.text
    (image_folder / "train" / "dog" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"1\.png"):
        load(image_folder, tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == []


def test_an_unwritable_folder_is_refused_before_decoding(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("advbnn.data.folder.decode_all", None)
    with pytest.raises(DataError, match="pass cache="):
        load(image_folder, tmp_path / "file" / "cache")
