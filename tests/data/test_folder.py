import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from advbnn.data import DataError, load_folder
from advbnn.data.folder import load_held_out
from advbnn.data.image import image_files
from images import save


def test_reads_every_image_with_its_class(image_folder: Path) -> None:
    loaded = load_folder(image_folder)
    assert (loaded.train.classes, loaded.train.shape, loaded.train.name) == (("cat", "dog"), (3, 12, 12), "pets")
    greys = loaded.train.images[:, 0, 0, 0].tolist()
    assert sorted(greys) == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert loaded.train.labels.tolist() == [int(grey > 50) for grey in greys]
    assert sorted(loaded.test.images[:, 2, 11, 11].tolist()) == [110, 120, 130, 140]
    assert loaded.validation is None


def test_hidden_folders_are_left_out_and_no_folder_is_a_published_set(image_folder: Path) -> None:
    expected = load_folder(image_folder).train
    save(image_folder / "train" / "cat" / ".ipynb_checkpoints" / "0-checkpoint.png")
    assert load_folder(image_folder).train.fingerprint() == expected.fingerprint()
    assert len(image_files([image_folder / "train"])) == len(expected)
    image_folder = image_folder.rename(image_folder.with_name("cifar10"))
    assert load_folder(image_folder).train.name == "folder-cifar10"


def test_the_first_images_are_of_all_classes(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("cat", "dog", "fox"):
            for number in range(40):
                save(tmp_path / split / name / f"{number}.png", 0, 2)
    assert load_folder(tmp_path).test.labels[:60].bincount().min() >= 12  # by SHA-256 of the names, the same everywhere


def test_val_is_the_test_set_unless_there_is_one(image_folder: Path) -> None:
    (image_folder / "test").rename(image_folder / "val")
    assert len(load_folder(image_folder).test) == 4
    for name in ("cat", "dog"):
        save(image_folder / "test" / name / "x.png")
    loaded = load_folder(image_folder)
    assert loaded.validation is not None
    assert (len(loaded.test), len(loaded.validation)) == (2, 4)


def test_held_out_images_need_no_training_images(image_folder: Path) -> None:
    expected = load_folder(image_folder).test
    shutil.rmtree(image_folder / "train")
    test, validation = load_held_out(image_folder)
    assert (test.fingerprint(), validation) == (expected.fingerprint(), None)
    alone, _ = load_held_out(image_folder / "test")  # class folders without splits
    assert (len(alone), alone.classes) == (4, ("cat", "dog"))
    (image_folder / "test").rename(image_folder / "train")
    with pytest.raises(DataError, match="test"):
        load_held_out(image_folder)


def test_finds_images_at_any_depth_and_ignores_other_files(image_folder: Path) -> None:
    save(image_folder / "train" / "cat" / "images" / "deep.PNG")
    (image_folder / "train" / "cat" / "notes.txt").write_text("not an image")
    (image_folder / "train" / "cat" / ".hidden.png").write_text("not an image")
    (image_folder / "train" / ".cache").mkdir()
    assert len(load_folder(image_folder).train) == 11


def test_refuses_incomplete_folders(image_folder: Path) -> None:
    (image_folder / "train" / "cow").mkdir()
    with pytest.raises(DataError, match="cow: .*image"):
        load_folder(image_folder)
    (image_folder / "train" / "cow").rmdir()
    (image_folder / "test" / "dog").rename(image_folder / "test" / "god")
    with pytest.raises(DataError, match="test: .*dog, god"):
        load_folder(image_folder)
    (image_folder / "test").rename(image_folder / "later")
    with pytest.raises(DataError, match="pets: .*ROOT/train"):
        load_folder(image_folder)
    (image_folder / "train").rename(image_folder / "earlier")
    with pytest.raises(DataError, match="train: "):
        load_folder(image_folder)


def test_images_of_different_sizes_need_a_size(image_folder: Path, tmp_path: Path) -> None:
    save(image_folder / "train" / "dog" / "9.png", np.zeros((12, 16, 3), np.uint8))
    with pytest.raises(DataError, match=r"9\.png: .*\(3, 12, 16\), .* size="):
        load_folder(image_folder)
    assert load_folder(image_folder, size=6).train.shape == (3, 6, 6)
    with pytest.raises(ValueError, match="needs size="):
        load_folder(image_folder, cache=tmp_path)


def test_one_error_names_all_unreadable_images(image_folder: Path) -> None:
    dogs = image_folder / "train" / "dog"
    whole = (dogs / "1.png").read_bytes()
    (dogs / "1.png").write_bytes(whole[: len(whole) // 2])
    (dogs / "2.png").write_bytes(b"")
    with pytest.raises(DataError) as raised:
        load_folder(image_folder)
    lines = str(raised.value).splitlines()
    assert len(lines) == 2 and all("readable image" in line and "replace or remove" in line for line in lines)
    for file in (*(dogs / f"{i}.png" for i in range(5)), image_folder / "train" / "cat" / "4.png"):
        file.write_bytes(b"")
    with pytest.raises(DataError, match="and 1 more"):
        load_folder(image_folder)


def test_file_names_need_not_be_utf8(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save(tmp_path / split / "a" / "1.png")
        os.rename(tmp_path / split / "a" / "1.png", os.fsencode(tmp_path / split / "a") + b"/\xff.png")
    assert len(load_folder(tmp_path, size=4, cache=tmp_path / "cache").train) == 1
