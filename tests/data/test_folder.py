import logging
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from advbnn.data import DataError, ImageSet, Splits, load_folder, load_imagenet143
from advbnn.data.image import decode

Image = pytest.importorskip("PIL.Image")


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


class TestFolder:
    def test_reads_every_image_with_its_class(self, image_folder: Path) -> None:
        loaded = load_folder(image_folder)
        assert loaded.train.classes == ("cat", "dog")
        assert loaded.train.shape == (3, 12, 12)
        greys = loaded.train.images[:, 0, 0, 0].tolist()
        assert sorted(greys) == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
        assert loaded.train.labels.tolist() == [int(grey > 50) for grey in greys]
        assert sorted(loaded.test.images[:, 2, 11, 11].tolist()) == [110, 120, 130, 140]
        assert loaded.validation is None

    def test_the_first_images_are_of_all_classes(self, tmp_path: Path) -> None:
        for split in ("train", "test"):
            for name in ("cat", "dog", "fox"):
                for number in range(40):
                    save(tmp_path / split / name / f"{number}.png", np.zeros((2, 2, 3), np.uint8))
        counts = load_folder(tmp_path).test.labels[:60].bincount()
        assert counts.min() >= 12
        assert load_folder(tmp_path).test.labels.equal(load_folder(tmp_path).test.labels)

    def test_val_is_the_test_set_unless_there_is_one(self, image_folder: Path) -> None:
        (image_folder / "test").rename(image_folder / "val")
        assert len(load_folder(image_folder).test) == 4
        for name in ("cat", "dog"):
            save(image_folder / "test" / name / "x.png", np.zeros((12, 12, 3), np.uint8))
        loaded = load_folder(image_folder)
        assert loaded.validation is not None
        assert (len(loaded.test), len(loaded.validation)) == (2, 4)

    def test_finds_images_at_any_depth_and_ignores_other_files(self, image_folder: Path) -> None:
        save(image_folder / "train" / "cat" / "images" / "deep.PNG", np.zeros((12, 12, 3), np.uint8))
        (image_folder / "train" / "cat" / "notes.txt").write_text("not an image")
        (image_folder / "train" / "cat" / ".hidden.png").write_text("not an image")
        (image_folder / "train" / ".cache").mkdir()
        assert len(load_folder(image_folder).train) == 11

    def test_missing_splits(self, image_folder: Path) -> None:
        (image_folder / "test").rename(image_folder / "later")
        with pytest.raises(DataError, match="pets: holds neither a test nor a val folder; expected ROOT/train"):
            load_folder(image_folder)
        (image_folder / "train").rename(image_folder / "earlier")
        with pytest.raises(DataError, match="train: there is no such folder"):
            load_folder(image_folder)

    def test_classes_that_differ(self, image_folder: Path) -> None:
        (image_folder / "test" / "dog").rename(image_folder / "test" / "god")
        with pytest.raises(DataError, match="test: has not the classes of .*train: dog, god in one"):
            load_folder(image_folder)

    def test_a_class_without_images(self, image_folder: Path) -> None:
        (image_folder / "train" / "cow").mkdir()
        with pytest.raises(DataError, match="cow: holds no image"):
            load_folder(image_folder)

    def test_images_of_different_sizes_need_a_size(self, image_folder: Path) -> None:
        save(image_folder / "train" / "dog" / "9.png", np.zeros((12, 16, 3), np.uint8))
        with pytest.raises(DataError, match=r"9\.png: is of shape \(3, 12, 16\), .* pass size="):
            load_folder(image_folder)
        assert load_folder(image_folder, size=6).train.shape == (3, 6, 6)

    def test_one_error_names_all_unreadable_images(self, image_folder: Path) -> None:
        whole = (image_folder / "train" / "dog" / "1.png").read_bytes()
        (image_folder / "train" / "dog" / "1.png").write_bytes(whole[: len(whole) // 2])
        (image_folder / "train" / "dog" / "2.png").write_bytes(b"")
        with pytest.raises(DataError) as raised:
            load_folder(image_folder)
        lines = str(raised.value).splitlines()
        assert len(lines) == 2
        assert all("is not a readable image" in line and "replace or remove" in line for line in lines)
        for i in range(5):
            (image_folder / "train" / "dog" / f"{i}.png").write_bytes(b"")
        (image_folder / "train" / "cat" / "4.png").write_bytes(b"")
        with pytest.raises(DataError, match="and 1 more"):
            load_folder(image_folder)

    def test_without_pillow(self, image_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "PIL", None)
        with pytest.raises(ImportError, match=r"advbnn\[data\]"):
            load_folder(image_folder)


class TestDecode:
    def test_grey_and_palette_and_transparent_images_become_rgb(self, tmp_path: Path) -> None:
        grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
        for mode in ("L", "P", "RGBA", "CMYK"):
            path = tmp_path / f"{mode}.{'tif' if mode == 'CMYK' else 'png'}"
            grey.convert(mode).save(path)
            assert np.array_equal(decode(path), np.stack([np.asarray(grey)] * 3))

    def test_refuses_pixels_that_would_be_cut_off_at_white(self, tmp_path: Path) -> None:
        for mode, name in (("I;16", "deep.png"), ("I", "deep.tif"), ("F", "real.tif")):
            kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
            save(tmp_path / name, np.full((4, 4), 300, kind))
            with pytest.raises(
                DataError, match=rf"{name}: holds pixels of more than 8 bits \(mode {mode}\).*; save it"
            ):
                decode(tmp_path / name)

    def test_takes_the_centred_square(self, tmp_path: Path) -> None:
        wide = np.zeros((4, 10, 3), np.uint8)
        wide[:, 3:7] = 200
        save(tmp_path / "wide.png", wide)
        save(tmp_path / "tall.png", wide.transpose(1, 0, 2))
        for name in ("wide.png", "tall.png"):
            assert (decode(tmp_path / name, 2) == 200).all()

    def test_resizing_agrees_with_antialiased_bilinear(self, tmp_path: Path) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
        save(tmp_path / "x.png", pixels)
        for size in (16, 64):
            expected = torch.nn.functional.interpolate(
                torch.from_numpy(pixels).permute(2, 0, 1)[None].double(),
                (size, size),
                mode="bilinear",
                antialias=True,
            )
            assert np.abs(decode(tmp_path / "x.png", size) - expected[0].numpy()).max() <= 1


class TestCache:
    @staticmethod
    def load(root: Path, cache: Path, size: int = 6) -> Splits[ImageSet]:
        return load_folder(root, size=size, cache=cache)

    def test_is_used_and_gives_the_same_images(
        self, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = tmp_path / "cache"
        direct = load_folder(image_folder, size=6)
        first = self.load(image_folder, cache)
        monkeypatch.setattr("advbnn.data.folder.decode_all", None)  # decoding again would fail
        second = self.load(image_folder, cache)
        for split in ("train", "test"):
            prints = {getattr(splits, split).fingerprint() for splits in (direct, first, second)}
            assert len(prints) == 1
        assert sorted(os.listdir(cache)) == sorted(
            f"pets-6-{split}.{kind}" for split in ("train", "test") for kind in ("npy", "json")
        )

    @pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "record", "no record"])
    def test_a_damaged_cache_is_built_again_and_that_is_said(
        self, image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
    ) -> None:
        cache = tmp_path / "cache"
        expected = self.load(image_folder, cache).train.fingerprint()
        store, record = cache / "pets-6-train.npy", cache / "pets-6-train.json"
        content = bytearray(store.read_bytes())
        content[-1] ^= 1
        match damage:
            case "flip":
                store.write_bytes(content)
            case "truncate":
                store.write_bytes(content[:-1])
            case "remove":
                store.unlink()
            case "record":
                record.write_text("{")
            case "no record":
                record.unlink()
        with caplog.at_level(logging.WARNING):
            assert self.load(image_folder, cache).train.fingerprint() == expected
        assert len(caplog.records) == 1
        assert "building it again" in caplog.text
        caplog.clear()
        assert self.load(image_folder, cache).train.fingerprint() == expected
        assert not caplog.records

    def test_a_stale_cache_is_built_again_and_that_is_said(
        self, image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        cache = tmp_path / "cache"
        self.load(image_folder, cache)
        save(image_folder / "train" / "cat" / "new.png", np.full((12, 12, 3), 7, np.uint8))
        with caplog.at_level(logging.WARNING):
            loaded = self.load(image_folder, cache)
        assert len(loaded.train) == 11
        assert "made from other images" in caplog.text

    def test_a_bitmap_that_was_drawn_over_does_not_hide_behind_its_size(
        self, image_folder: Path, tmp_path: Path
    ) -> None:
        bitmap, cache = image_folder / "train" / "cat" / "new.bmp", tmp_path / "cache"
        save(bitmap, np.full((12, 12, 3), 1, np.uint8))
        before = self.load(image_folder, cache).train
        size, time = bitmap.stat().st_size, bitmap.stat().st_mtime_ns
        save(bitmap, np.full((12, 12, 3), 201, np.uint8))
        os.utime(bitmap, ns=(time + 1, time + 1))  # clocks are coarse, tests are fast
        assert bitmap.stat().st_size == size
        after = self.load(image_folder, cache).train
        assert 1 in before.images and 201 not in before.images
        assert 201 in after.images and 1 not in after.images

    def test_failure_leaves_no_files(self, image_folder: Path, tmp_path: Path) -> None:
        (image_folder / "train" / "dog" / "1.png").write_bytes(b"")
        with pytest.raises(DataError, match=r"1\.png"):
            self.load(image_folder, tmp_path / "cache")
        assert os.listdir(tmp_path / "cache") == []

    def test_a_full_disk_costs_the_cache_but_not_the_images(
        self,
        image_folder: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def full(*args: object, **options: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(np, "save", full)
        with caplog.at_level(logging.WARNING):
            assert len(self.load(image_folder, tmp_path / "cache").train) == 10
        assert "No space left on device" in caplog.text
        assert os.listdir(tmp_path / "cache") == []

    def test_a_folder_that_cannot_be_written_is_known_before_decoding(
        self, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setattr("advbnn.data.folder.decode_all", None)
        with pytest.raises(DataError, match="cannot be written here .* pass cache=another folder"):
            self.load(image_folder, tmp_path / "file" / "cache")

    def test_needs_a_size(self, image_folder: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="needs size="):
            load_folder(image_folder, cache=tmp_path)


class TestImageNet143:
    @staticmethod
    def tree(root: Path, classes: list[str]) -> Path:
        """One 2x2 image a class and split, as grey as the class's position."""
        for split in ("train", "val"):
            for i, name in enumerate(classes):
                (root / split / name).mkdir(parents=True)
                Image.fromarray(np.full((2, 2), i % 251, np.uint8)).save(root / split / name / "x.png")
        return root

    @staticmethod
    def ids(count: int) -> list[str]:
        """Sorted stand-ins around the two real ids at their real distance."""
        inner = [f"n02085621{i:04d}" for i in range(141)]
        chosen = ["n02085620", *inner, "n02130308"]
        if count == 143:
            return chosen
        return [f"n01{i:06d}" for i in range(151)] + chosen + [f"n03{i:06d}" for i in range(706)]

    def test_a_tree_of_only_these_classes(self, tmp_path: Path) -> None:
        loaded = load_imagenet143(self.tree(tmp_path, self.ids(143)), cache=tmp_path / "kept")
        assert (len(loaded.train), len(loaded.test), loaded.train.shape) == (143, 143, (3, 64, 64))
        assert loaded.train.images[:, 0, 0, 0].equal(loaded.train.labels.to(torch.uint8))
        assert sorted(loaded.train.labels.tolist()) == list(range(143))
        assert loaded.train.name == "imagenet143"
        assert (tmp_path / "kept" / "imagenet143-64-train.npy").exists()

    def test_positions_151_to_293_of_a_whole_tree(self, tmp_path: Path) -> None:
        classes = self.ids(1000)
        assert len(classes) == 1000 and classes == sorted(classes)
        for split in ("train", "val"):
            for name in classes:
                (tmp_path / "imagenet" / split / name).mkdir(parents=True)
        for i in range(151, 294):
            for split in ("train", "val"):
                folder = tmp_path / "imagenet" / split / classes[i]
                Image.fromarray(np.full((2, 2), i - 100, np.uint8)).save(folder / "x.png")
        loaded = load_imagenet143(tmp_path, size=2)
        assert loaded.train.images[:, 0, 0, 0].equal((loaded.train.labels + 51).to(torch.uint8))
        assert sorted(loaded.train.labels.tolist()) == list(range(143))
        assert loaded.test.classes == tuple(classes[151:294])
        assert (tmp_path / "imagenet" / "advbnn-cache" / "imagenet143-2-val.json").exists()

    def test_another_number_of_classes(self, tmp_path: Path) -> None:
        (tmp_path / "train" / "n02086240").mkdir(parents=True)
        with pytest.raises(DataError, match="train: holds 1 class folders; expected .*1,000 classes"):
            load_imagenet143(tmp_path)

    def test_other_classes(self, tmp_path: Path) -> None:
        for name in self.ids(1000)[:143]:
            (tmp_path / "train" / name).mkdir(parents=True)
        with pytest.raises(DataError, match="train: its classes run from n01000000 to n01000142"):
            load_imagenet143(tmp_path)

    def test_validation_images_that_were_never_sorted(self, tmp_path: Path) -> None:
        for name in self.ids(143):
            save(tmp_path / "train" / name / "x.png", np.zeros((2, 2, 3), np.uint8))
        save(tmp_path / "val" / "ILSVRC2012_val_00000001.png", np.zeros((2, 2, 3), np.uint8))
        with pytest.raises(DataError, match="val: holds 0 class folders; expected"):
            load_imagenet143(tmp_path)

    def test_no_tree(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="train: there is no such folder; expected train/<WordNet id>"):
            load_imagenet143(tmp_path)
