from pathlib import Path

import pytest
import torch

from advbnn.data import Batches, DataError, HorizontalFlip, RandomCrop, load_folder, stream_folder

# Since Python 3.12 a fork beside other threads warns; the workers only decode.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
AUGMENTATIONS = (RandomCrop(padding=1), HorizontalFlip())


@pytest.mark.parametrize("workers", [0, 2])
def test_gives_the_batches_of_the_folder_in_memory(image_folder: Path, workers: int) -> None:
    streamed = stream_folder(image_folder, size=6, workers=workers)
    loaded = load_folder(image_folder, size=6)
    options = {"seed": 3, "augmentations": AUGMENTATIONS}
    before = torch.get_rng_state()
    here = list(Batches(streamed.train, 4, **options).epoch(2, start_step=1))  # type: ignore[arg-type]
    there = list(Batches(loaded.train, 4, **options).epoch(2, start_step=1))  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)
    assert len(here) == len(there) == 2
    for (x, y), (u, v) in zip(here, there, strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)


def test_describes_itself_like_a_set_in_memory(image_folder: Path) -> None:
    streamed, loaded = stream_folder(image_folder, size=6, workers=0), load_folder(image_folder, size=6)
    assert streamed.train.shape == loaded.train.shape
    assert streamed.train.classes == loaded.train.classes
    assert torch.equal(streamed.train.targets, loaded.train.targets)
    assert len(streamed.test) == len(loaded.test) == 4
    assert streamed.train.to("cpu").device == torch.device("cpu")
    assert "10 of 3x6x6, 2 classes" in repr(streamed.train)


def test_a_validation_set_of_a_stream(image_folder: Path) -> None:
    streamed = stream_folder(image_folder, size=6, workers=0).split_validation(count=4, seed=0)
    loaded = load_folder(image_folder, size=6).split_validation(count=4, seed=0)
    assert streamed.validation is not None and loaded.validation is not None
    assert streamed.validation.name == loaded.validation.name == "pets[4 of 10]"
    (x, y), (u, v) = (
        next(Batches(s.validation, 4, shuffle=False).epoch(0)) for s in (streamed, loaded) if s.validation
    )
    assert torch.equal(x, u)
    assert y.bincount().tolist() == v.bincount().tolist() == [2, 2]


def test_fingerprint_follows_the_files_and_the_size(image_folder: Path) -> None:
    first = stream_folder(image_folder, size=6, workers=0).train.fingerprint()
    assert stream_folder(image_folder, size=6, workers=0).train.fingerprint() == first
    assert stream_folder(image_folder, size=7, workers=0).train.fingerprint() != first
    (image_folder / "train" / "cat" / "0.png").rename(image_folder / "train" / "cat" / "00.png")
    assert stream_folder(image_folder, size=6, workers=0).train.fingerprint() != first


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_images_are_known_before_training(image_folder: Path, workers: int) -> None:
    for i in (1, 3):
        (image_folder / "train" / "dog" / f"{i}.png").write_bytes(b"no image")
    with pytest.raises(DataError) as raised:
        stream_folder(image_folder, size=6, workers=workers)
    assert [line.split(":")[0][-9:] for line in str(raised.value).splitlines()] == ["dog/1.png", "dog/3.png"]


def test_an_image_that_vanishes_while_training(image_folder: Path) -> None:
    streamed = stream_folder(image_folder, size=6, workers=1)
    (image_folder / "train" / "dog" / "1.png").unlink()
    with pytest.raises(DataError, match=r"^\S+1\.png: there is no such file; restore it$"):
        list(Batches(streamed.train, 5).epoch(0))


def test_refuses_bad_options(image_folder: Path) -> None:
    with pytest.raises(ValueError, match="got size=0"):
        stream_folder(image_folder, size=0)
