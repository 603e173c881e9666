"""CutMix: boxes, labels, and that it follows seed, epoch and step."""

import math

import pytest
import torch

from advbnn.data import Batches, CutMix, from_tensors, named_augmentation


def mixture(count: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    """Black images of class 0 with white boxes of class 1."""
    black, white = torch.zeros(count, 1, 32, 32), torch.ones(count, 1, 32, 32)
    zero, one = torch.zeros(count, dtype=torch.int64), torch.ones(count, dtype=torch.int64)
    uniform = torch.rand(count, 3, generator=torch.Generator().manual_seed(0))
    images, labels = CutMix().apply(black, zero, white, one, uniform, classes=3)
    return images, labels


def test_labels_are_the_shares_of_the_area() -> None:
    images, labels = mixture()
    share = images.mean((1, 2, 3))
    torch.testing.assert_close(labels, torch.stack([1 - share, share, torch.zeros_like(share)], 1))


def test_boxes_are_rectangles_with_the_mean_area_of_the_definition() -> None:
    images, _ = mixture()
    box = images[:, 0] > 0
    rows, columns = box.any(2), box.any(1)
    assert torch.equal(box, rows[:, :, None] & columns[:, None, :])
    # a side is s = sqrt(u) of the image, and s - s^2 / 4 in the mean after it is cut at the border, so that the mean
    # area is E[(s - s^2 / 4)^2] = 1/2 - 1/5 + 1/48; sides are rounded down to an even number of pixels
    expected = 1 / 2 - 1 / 5 + 1 / 48
    areas = images.mean((1, 2, 3))
    assert abs(areas.mean() - expected) < 5 * areas.std() / math.sqrt(len(areas)) + 0.04


def test_batches_mix_with_other_images_and_resume_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8, generator=generator)
    examples = from_tensors(images, torch.arange(50) % 10)
    options = {"seed": 1, "augmentations": named_augmentation("cutmix", "x"), "cutmix": CutMix()}
    whole = list(Batches(examples, 16, **options).epoch(3))
    assert [y.shape for _, y in whole] == [(16, 10)] * 3 + [(2, 10)]
    for x, y in whole:
        assert x.dtype == y.dtype == torch.float32
        torch.testing.assert_close(y.sum(1), torch.ones(len(y)))
    assert any((y > 0).sum(1).max() == 2 for _, y in whole)
    for (x, y), (x_rest, y_rest) in zip(whole[2:], Batches(examples, 16, **options).epoch(3, 2), strict=True):
        assert torch.equal(x, x_rest) and torch.equal(y, y_rest)
    shards = [list(Batches(examples, 16, rank=rank, world=2, **options).epoch(3)) for rank in (0, 1)]
    for (x, y), *parts in zip(whole, *shards, strict=True):
        for rank, (x_part, y_part) in enumerate(parts):
            assert torch.equal(x[rank::2], x_part) and torch.equal(y[rank::2], y_part)


def test_regression_is_refused() -> None:
    with pytest.raises(ValueError, match="cutmix .*labels"):
        Batches(from_tensors(torch.rand(4, 1, 8, 8), torch.rand(4)), 2, cutmix=CutMix())
