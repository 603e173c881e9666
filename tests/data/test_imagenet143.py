from pathlib import Path

import pytest
import torch

from advbnn.data import DataError, load_imagenet143
from images import save

CHOSEN = ["n02085620", *(f"n02085621{i:04d}" for i in range(141)), "n02130308"]
"""Sorted stand-ins between the two real ids, at their real distance."""
WHOLE = [f"n01{i:06d}" for i in range(151)] + CHOSEN + [f"n03{i:06d}" for i in range(706)]


def write_tree(root: Path, classes: list[str]) -> None:
    """One 2x2 image per chosen class and split, as grey as the position among the chosen."""
    for split in ("train", "val"):
        for name in classes:
            (root / split / name).mkdir(parents=True)
        for i, name in enumerate(CHOSEN):
            save(root / split / name / "x.png", i, 2)


@pytest.mark.parametrize("classes", [CHOSEN, WHOLE], ids=len)
def test_takes_positions_151_to_293(tmp_path: Path, classes: list[str]) -> None:
    assert classes == sorted(classes) and len(classes) in (143, 1000)
    write_tree(tmp_path / "imagenet", classes)
    loaded = load_imagenet143(tmp_path)
    assert (len(loaded.train), len(loaded.test), loaded.train.shape) == (143, 143, (3, 64, 64))
    assert loaded.train.images[:, 0, 0, 0].equal(loaded.train.labels.to(torch.uint8))
    assert sorted(loaded.train.labels.tolist()) == list(range(143))
    assert loaded.test.classes == tuple(CHOSEN)
    assert loaded.train.name == "imagenet143"
    assert (tmp_path / "imagenet" / "advbnn-cache" / "imagenet143-64-val.json").exists()
    load_imagenet143(tmp_path, size=2, cache=tmp_path / "kept")
    assert (tmp_path / "kept" / "imagenet143-2-train.npy").exists()


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([], "train: there is no such folder"),
        (CHOSEN[:1], "train: contains 1 class folders.*; expected .*1,000 classes"),
        (WHOLE[:143], "train: .*from n01000000 to n01000142"),
        (CHOSEN, "val: there is no such folder"),
    ],
)
def test_refuses_other_trees(tmp_path: Path, classes: list[str], message: str) -> None:
    for name in classes:
        save(tmp_path / "train" / name / "x.png", 0, 2)
    with pytest.raises(DataError, match=message):
        load_imagenet143(tmp_path)
