import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from advbnn.data import Augmentation, HorizontalFlip, RandomCrop, RandomResizedCrop, to_float, usual_augmentation
from advbnn.data.augment import augment

ALL = [RandomCrop(padding=2), HorizontalFlip(), RandomResizedCrop(size=7)]


def images(count: int, height: int = 9, width: int = 9) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)


@given(st.integers(0, 4), st.integers(3, 9), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_crop_is_a_window_of_the_padded_image(padding: int, width: int, seed: int) -> None:
    x = images(16, 8, width)
    uniform = torch.rand(16, 2, generator=torch.Generator().manual_seed(seed))
    out, padded = RandomCrop(padding=padding).apply(x, uniform), F.pad(x, [padding] * 4)
    for i, (u, v) in enumerate(uniform.tolist()):
        top, left = int(u * (2 * padding + 1)), int(v * (2 * padding + 1))
        assert torch.equal(out[i], padded[i, :, top : top + 8, left : left + width])


@pytest.mark.parametrize(("size", "padding"), [(96, 4), (64, 4), (32, 4), (28, 3), (16, 2), (8, 1), (7, 0)])
def test_small_images_are_shifted_by_an_eighth_of_their_side(size: int, padding: int) -> None:
    x, uniform = images(9, size, size + 2), torch.linspace(0, 1 - 2**-24, 18).view(9, 2)
    assert torch.equal(RandomCrop().apply(x, uniform), RandomCrop(padding=padding).apply(x, uniform))


@pytest.mark.parametrize("last", [0.0, 1 - 2**-24])
def test_extreme_numbers_stay_inside(last: float) -> None:
    white = torch.full((2, 3, 9, 9), 255, dtype=torch.uint8)
    for augmentation in ALL:
        out = to_float(augmentation.apply(white, torch.full((2, augmentation.numbers), last)))
        assert out.min() >= 0 and out.max() <= 1
    torch.testing.assert_close(out, torch.ones_like(out))  # resizing keeps white


def test_flip_mirrors_about_half() -> None:
    x = images(4000, 2, 2)
    out = HorizontalFlip()(x, torch.Generator().manual_seed(1))
    flipped, kept = ((out == other).flatten(1).all(1) for other in (x.flip(-1), x))
    assert (flipped | kept).all()
    assert abs(int((flipped & ~kept).sum()) - 2000) < 5 * 1000**0.5


@given(st.integers(4, 20), st.integers(6, 24), st.integers(6, 24), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_resized_crop_is_crop_then_antialiased_resize(size: int, height: int, width: int, seed: int) -> None:
    x = images(6, height, width)
    uniform = torch.rand(6, 3, generator=torch.Generator().manual_seed(seed))
    low, high = 0.3, 0.9
    out = RandomResizedCrop(size=size, scale=(low, high)).apply(x, uniform)
    assert out.shape == (6, 3, size, size)
    for i in range(6):
        area = (low + (high - low) * uniform[i, 0]) * height * width
        side = min(int(area.sqrt().round()), height, width)
        top, left = int(uniform[i, 1] * (height - side + 1)), int(uniform[i, 2] * (width - side + 1))
        crop = x[i : i + 1, :, top : top + side, left : left + side].float() / 255
        expected = F.interpolate(crop, (size, size), mode="bilinear", antialias=True)
        torch.testing.assert_close(out[i : i + 1], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("augmentation", ALL, ids=repr)
def test_follows_the_generator_and_leaves_the_default_one_alone(augmentation: Augmentation) -> None:
    x = images(32)
    before = torch.get_rng_state()
    first, again, other = (augmentation(x, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("augmentation", ALL, ids=repr)
def test_depends_on_the_own_numbers_only_and_not_on_the_type(augmentation: Augmentation) -> None:
    x = images(8)
    uniform = torch.rand(8, augmentation.numbers, generator=torch.Generator().manual_seed(0))
    whole = augmentation.apply(x, uniform)
    # resizing is a matrix product, which may round differently for another batch size
    torch.testing.assert_close(whole[3:5], augmentation.apply(x[3:5], uniform[3:5]), atol=1e-6, rtol=0)
    assert torch.equal(to_float(whole), augmentation.apply(to_float(x), uniform))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(augmentation.apply(x, uniform), whole)  # the precision of the network does not round images


def test_one_after_the_other_with_their_own_numbers() -> None:
    x = images(5)
    crop, flip = RandomCrop(padding=1), HorizontalFlip()
    uniform = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    expected = flip.apply(crop.apply(x, uniform[:, :2]), uniform[:, 2:])
    assert torch.equal(augment(x, (crop, flip), uniform), expected)
    assert augment(x, (), uniform[:, :0]) is x


def test_to_float_hits_both_ends_and_leaves_floats_alone() -> None:
    values = torch.arange(256, dtype=torch.uint8)
    assert to_float(values)[[0, 255]].tolist() == [0.0, 1.0]
    torch.testing.assert_close(to_float(values), values / 255)
    assert torch.equal((to_float(values) * 255).round().to(torch.uint8), values)
    x = torch.rand(2, 2, dtype=torch.float64)
    assert to_float(x) is x


def test_the_usual_ones() -> None:
    for name in ("cifar10", "stl10", "stl10-subset", "cifar10[45000 of 50000]"):
        assert usual_augmentation(name) == (RandomCrop(), HorizontalFlip())
    assert usual_augmentation("imagenet143") == (RandomResizedCrop(size=64, scale=(0.8, 0.9)), HorizontalFlip())
    assert usual_augmentation("digits") == ()


def test_refuses_bad_options() -> None:
    with pytest.raises(ValueError, match="size "):
        RandomResizedCrop(size=0)
    with pytest.raises(ValueError, match="scale "):
        RandomResizedCrop(size=4, scale=(0.9, 0.8))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("augmentation", ALL, ids=repr)
def test_the_gpu_gives_the_same_images(augmentation: Augmentation) -> None:
    x = images(64)
    here = augmentation(x, torch.Generator().manual_seed(5))
    there = augmentation(x.cuda(), torch.Generator().manual_seed(5))
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), here, atol=1e-6, rtol=0)
