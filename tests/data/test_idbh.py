"""IDBH against Pillow, and the distribution of its parts."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from advbnn.data import Batches, from_tensors, named_augmentation
from advbnn.data.augment import HorizontalFlip, to_float
from advbnn.data.idbh import (
    ColorOrShape,
    CropShift,
    RandomErasing,
    autocontrast,
    brightness,
    contrast,
    equalize,
    idbh,
    rotated,
    saturation,
    sharpness,
    sheared,
)

FACTORS = (0.1, 0.5, 0.93, 1.0, 1.37, 1.9)


def images(count: int = 6, size: int = 32, channels: int = 3) -> Tensor:
    """Smooth images of different contrast, a constant one, and one of two values."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(count, channels, 6, 6, generator=generator)
    smooth = torch.nn.functional.interpolate(noise, size=(size, size), mode="bilinear")
    x = (40 + 180 * torch.rand(count, 1, 1, 1, generator=generator) * smooth).to(torch.uint8)
    x[0], x[1] = 77, torch.where(torch.arange(size) < 3, 10, 200).to(torch.uint8)
    return x


def picture(x: Tensor) -> Image.Image:
    return Image.fromarray(x.permute(1, 2, 0).numpy())


def pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def farthest(ours: Tensor, theirs: list[Image.Image]) -> int:
    return int((ours.int() - torch.stack([pixels(image) for image in theirs]).int()).abs().max())


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (saturation, ImageEnhance.Color),
        (brightness, ImageEnhance.Brightness),
        (contrast, ImageEnhance.Contrast),
        (sharpness, ImageEnhance.Sharpness),
    ],
)
def test_blends_are_those_of_pillow_up_to_rounding(ours, theirs, factor: float) -> None:
    x = images()
    found = ours(x, torch.full((len(x), 1, 1, 1), factor))
    assert farthest(found, [theirs(picture(each)).enhance(factor) for each in x]) <= 1


def test_the_smoothed_image_is_that_of_pillow() -> None:
    x = images()
    assert farthest(sharpness(x, torch.zeros(1)), [picture(each).filter(ImageFilter.SMOOTH) for each in x]) == 0


@pytest.mark.parametrize(("ours", "theirs"), [(autocontrast, ImageOps.autocontrast), (equalize, ImageOps.equalize)])
def test_stretches_are_those_of_pillow_up_to_rounding(ours, theirs) -> None:
    noisy = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    x = torch.cat([images(12), noisy])
    assert farthest(ours(x), [theirs(picture(each)) for each in x]) <= 1


@pytest.mark.parametrize("degrees", [-10.0, -3.0, 1.0, 7.0, 90.0])
def test_rotation_is_that_of_pillow(degrees: float) -> None:
    x = images()[2:]
    found = rotated(x, torch.full((len(x),), degrees, dtype=torch.float64))
    expected = torch.stack([pixels(picture(each).rotate(degrees)) for each in x])
    assert (found == expected).float().mean() > 0.99  # Pillow computes places in fixed point


@pytest.mark.parametrize("angle", [-0.15, 0.05, 0.12])
@pytest.mark.parametrize("along_rows", [True, False])
def test_shear_is_that_of_pillow(angle: float, along_rows: bool) -> None:
    x = images()[2:]
    found = sheared(x, torch.full((len(x),), angle, dtype=torch.float64), torch.full((len(x),), along_rows))
    slope = math.tan(angle)
    matrix = (1, slope, -slope * 16, 0, 1, 0) if along_rows else (1, 0, 0, slope, 1, -slope * 16)
    expected = [picture(each).transform((32, 32), Image.Transform.AFFINE, matrix) for each in x]
    assert (found == torch.stack([pixels(image) for image in expected])).float().mean() > 0.99


def test_exactly_one_change_is_made_and_each_about_equally_often() -> None:
    x, count = images(3)[2:].expand(8000, -1, -1, -1), 8000
    uniform = torch.rand(count, 4, generator=torch.Generator().manual_seed(0))
    out = ColorOrShape().apply(x, uniform)
    which = (uniform[:, 0] * 8).long()
    for number, change in ((4, autocontrast), (5, equalize)):
        assert torch.equal(out[which == number], change(x[which == number]))
        assert abs(int((which == number).sum()) - count / 8) < 5 * math.sqrt(count / 8)
    bright = which == 1
    factor = (0.5 + 1.4 * uniform[bright, 1]).view(-1, 1, 1, 1)
    assert torch.equal(out[bright], brightness(x[bright], factor))
    turned = which == 7
    degrees = 1 + (uniform[turned, 1].double() * 10).floor()
    assert degrees.min() == 1 and degrees.max() == 10
    sign = torch.where(uniform[turned, 2] < 0.5, -1.0, 1.0)
    assert torch.equal(out[turned], rotated(x[turned], degrees * sign))


def test_crop_shift_shows_a_window_elsewhere_and_blackens_s_lines_in_all() -> None:
    count = 4000
    numbers = torch.arange(1, 32 * 32 + 1).view(1, 1, 32, 32).expand(count, -1, -1, -1).float()
    out = CropShift(limit=11)(numbers, torch.Generator().manual_seed(0))[:, 0]
    shown = out > 0
    rows, columns = shown.any(2), shown.any(1)
    assert torch.equal(shown, rows[:, :, None] & columns[:, None, :])  # a rectangle
    lost = 64 - rows.sum(1) - columns.sum(1)
    assert torch.bincount(lost, minlength=11).numel() == 11
    expected = count / 11
    assert ((torch.bincount(lost) - expected).abs() < 5 * math.sqrt(expected)).all()
    narrower = 32 - columns.sum(1)
    ten = narrower[lost == 10]  # uniform in 0..10
    assert ((torch.bincount(ten, minlength=11) - len(ten) / 11).abs() < 5 * math.sqrt(len(ten) / 11)).all()
    for window, row, column in zip(out[:50], rows, columns, strict=False):
        part = window[row][:, column]
        assert (part[:, 1:] - part[:, :-1] == 1).all() and (part[1:] - part[:-1] == 32).all()


def test_places_of_a_crop_shift_are_uniform() -> None:
    uniform = torch.rand(6000, 6, generator=torch.Generator().manual_seed(2))
    uniform[:, 0], uniform[:, 1] = 4.5 / 11, 0.99  # four columns fewer
    numbers = torch.arange(1, 33).view(1, 1, 1, 32).expand(6000, 1, 32, -1).float()
    first = CropShift(limit=11).apply(numbers, uniform)[:, 0, 0]
    target, source = (first > 0).int().argmax(1), first.amax(1) - 28
    for place in (target, source.long()):
        assert ((torch.bincount(place, minlength=5) - 1200).abs() < 5 * math.sqrt(1200)).all()


def test_erasing_has_the_shares_and_shapes_that_it_says() -> None:
    count = 8000
    out = RandomErasing()(torch.ones(count, 1, 32, 32), torch.Generator().manual_seed(0))[:, 0]
    black = out == 0
    erased = black.flatten(1).any(1)
    assert abs(int(erased.sum()) - count / 2) < 5 * math.sqrt(count / 4)
    heights, widths = black.any(2).sum(1)[erased], black.any(1).sum(1)[erased]
    area = (heights * widths).double()
    assert torch.equal(area, black.flatten(1).sum(1)[erased].double())  # a rectangle
    assert area.min() > 0.01 * 1024 and area.max() < 0.37 * 1024  # sides are rounded
    assert abs(area.mean() / 1024 - 0.175) < 0.01
    assert abs((heights.double() / widths).log().mean()) < 0.05
    assert RandomErasing(p=1.0)(torch.ones(500, 1, 32, 32)).flatten(1).amin(1).max() == 0


@pytest.mark.parametrize("channels", [1, 3])
def test_follows_the_numbers_of_each_image_alone_on_bytes_and_on_floats(channels: int) -> None:
    x = images(40, channels=channels)
    for augmentation in idbh():
        uniform = torch.rand(40, augmentation.numbers, generator=torch.Generator().manual_seed(3))
        whole = augmentation.apply(x, uniform)
        assert whole.dtype == torch.uint8 and whole.shape == x.shape
        assert torch.equal(whole[5:9], augmentation.apply(x[5:9], uniform[5:9]))
        assert torch.equal(to_float(whole), to_float(augmentation.apply(to_float(x), uniform)))
        for edge in (0.0, 1 - 2**-24):
            augmentation.apply(x, torch.full((40, augmentation.numbers), edge))


def test_an_epoch_of_batches_resumes_bit_for_bit() -> None:
    labels = torch.arange(300) % 10
    batches = Batches(from_tensors(images(300), labels), 16, seed=4, augmentations=named_augmentation("idbh_weak", "x"))
    whole = list(batches.epoch(2))
    assert [len(y) for _, y in whole] == [16] * 18 + [12]
    for start in (1, 7, 18):
        rest = list(batches.epoch(2, start))
        assert len(rest) == 19 - start
        for (x, y), (x_rest, y_rest) in zip(whole[start:], rest, strict=True):
            assert torch.equal(x, x_rest) and torch.equal(y, y_rest)
    other = next(iter(batches.epoch(3)))
    assert not torch.equal(other[0], whole[0][0])


def test_names() -> None:
    assert [type(part) for part in named_augmentation("idbh_weak", "cifar10")] == [
        HorizontalFlip,
        CropShift,
        ColorOrShape,
        RandomErasing,
    ]
    assert named_augmentation("idbh_strong", "cifar10")[-1] == RandomErasing(p=1.0)
    assert named_augmentation(False, "cifar10") == ()
    assert named_augmentation(True, "cifar10") == named_augmentation("crop_flip", "anything")
    with pytest.raises(ValueError, match="augment='idbh'.*idbh_weak"):
        named_augmentation("idbh", "cifar10")
    with pytest.raises(ValueError, match="augment.*8 x 8.*augment=True.*False"):
        CropShift()(images(2, size=8))
