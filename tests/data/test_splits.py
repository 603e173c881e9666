import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advbnn.data import ImageSet, Splits, from_tensors, load_digits


def numbered(labels: list[int]) -> ImageSet:
    """A set whose image i holds the value i."""
    values = torch.arange(len(labels)).to(torch.uint8).reshape(-1, 1, 1, 1)
    return ImageSet(values, torch.tensor(labels), ("a", "b", "c"), "toy")


def test_validation_comes_from_the_training_set_alone() -> None:
    digits = load_digits()
    split = digits.split_validation(fraction=0.1, seed=1)
    assert split.test is digits.test
    moved = split.to("cpu")
    assert moved.validation is not None
    assert (len(moved.train), len(moved.validation)) == (1167, 130)
    assert moved.validation.name == "digits[130 of 1297]"
    again, other = (digits.split_validation(fraction=0.1, seed=seed).train.fingerprint() for seed in (1, 2))
    assert split.train.fingerprint() == again != other


@given(labels=st.lists(st.integers(0, 2), min_size=2, max_size=200), data=st.data(), seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_validation_is_a_stratified_partition(labels: list[int], data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(1, len(labels) - 1))
    whole = numbered(labels)
    split = Splits(whole, whole).split_validation(count=count, seed=seed)
    assert split.validation is not None
    train, validation = split.train.images.flatten(), split.validation.images.flatten()
    assert len(validation) == count
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(len(labels)))
    shares = whole.labels.bincount(minlength=3) * count / len(labels)
    assert ((split.validation.labels.bincount(minlength=3) - shares).abs() < 1).all()


def test_validation_of_a_regression_is_random() -> None:
    whole = from_tensors(torch.arange(100.0)[:, None], torch.arange(100.0))
    split = Splits(whole, whole).split_validation(count=50, seed=0)
    assert split.validation is not None
    assert split.validation.targets.diff().unique().numel() > 2
    assert not set(split.validation.targets.tolist()) & set(split.train.targets.tolist())


def test_refuses_impossible_validation_sets() -> None:
    digits = load_digits()
    for fraction, count, message in (
        (0.0, 0, "either fraction or count"),
        (0.5, 3, "either fraction or count"),
        (1e-9, 0, "takes 0 of 1297"),
        (0.0, 1297, "expected 1 to 1296"),
    ):
        with pytest.raises(ValueError, match=message):
            digits.split_validation(fraction=fraction, count=count)
    with pytest.raises(ValueError, match="validation"):
        digits.split_validation(count=9).split_validation(count=9)


def test_refuses_sets_that_do_not_belong_together() -> None:
    train = numbered([0, 1, 2])
    renamed = ImageSet(train.images, train.labels, ("a", "c", "b"), "other")
    reshaped = ImageSet(train.images.expand(-1, 3, -1, -1), train.labels, train.classes, "other")
    for other in (renamed, reshaped):
        with pytest.raises(ValueError, match="class names.*shape"):
            Splits(train, other)
