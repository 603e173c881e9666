from typing import Any

import numpy as np
import pytest
import torch

from advbnn.data import ImageSet, TensorSet, from_tensors
from advbnn.errors import AdvbnnError

LABELS = torch.tensor([0, 1])


def images(count: int = 6, classes: int = 3) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 4, 5), dtype=torch.uint8, generator=generator)
    return ImageSet(pixels, torch.arange(count) % classes, tuple("abc"[:classes]), "toy")


def test_describes_itself() -> None:
    toy = images()
    assert (len(toy), toy.shape) == (6, (1, 4, 5))
    assert toy.targets is toy.labels
    assert repr(toy) == "ImageSet('toy': 6 of 1x4x5, 3 classes, on cpu)"
    assert toy.to("cpu").images.data_ptr() == toy.images.data_ptr()  # nothing is copied


def test_a_subset_keeps_the_given_order_and_its_name_says_that_it_is_a_part() -> None:
    toy = images()
    part = toy.subset([4, 0])
    assert torch.equal(part.images, toy.images[[4, 0]])
    assert (part.labels.tolist(), part.name) == ([1, 0], "toy[2 of 6]")
    assert toy.subset(torch.arange(6, dtype=torch.int32)).name == "toy"
    mask = toy.labels == 2
    for form in (mask, mask.tolist(), mask.numpy()):
        assert torch.equal(toy.subset(form).images, toy.images[[2, 5]])


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([], "non-empty"),
        ([6], r"0\.\.5"),
        ([-1], r"0\.\.5"),
        (torch.ones(5, dtype=torch.bool), "mask.* 6 rows"),
        (torch.tensor([0.0, 1.5]), r"float32; .*\.long"),
    ],
)
def test_refuses_rows_that_do_not_exist(indices: Any, message: str) -> None:
    with pytest.raises(AdvbnnError, match=f"indices.*{message}"):
        images().subset(indices)


def test_fingerprint_depends_on_the_contents_only() -> None:
    toy = images()
    same = ImageSet(toy.images.clone(), toy.labels.clone(), list(toy.classes), "another name")  # type: ignore[arg-type]
    assert same.classes == toy.classes  # a list of classes becomes a tuple
    assert toy.fingerprint() == same.fingerprint()
    pixel = toy.images.clone()
    pixel[0, 0, 0, 0] ^= 1
    others = [
        ImageSet(pixel, toy.labels, toy.classes, "toy"),
        ImageSet(toy.images, toy.labels.flip(0), toy.classes, "toy"),
        ImageSet(toy.images, toy.labels, ("a", "b", "d"), "toy"),
        ImageSet(toy.images.reshape(6, 1, 5, 4), toy.labels, toy.classes, "toy"),
    ]
    assert len({toy.fingerprint(), *(other.fingerprint() for other in others)}) == 5
    inputs = torch.linspace(0, 1, 8, dtype=torch.bfloat16).reshape(4, 2)  # a type that numpy lacks
    first, second = (from_tensors(x, torch.zeros(4)).fingerprint() for x in (inputs, inputs.flip(0)))
    assert first != second


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(6, 1, 4, 5)}, "images must be uint8"),
        ({"images": torch.zeros(6, 4, 5, dtype=torch.uint8)}, "images must be uint8"),
        ({"images": torch.zeros(6, 0, 4, 5, dtype=torch.uint8)}, "no dimension of 0"),
        ({"images": np.zeros((6, 1, 4, 5), np.uint8)}, r"inputs .* got ndarray; use torch\.as_tensor"),
        ({"labels": torch.zeros(6)}, r"targets\.long"),
        ({"labels": torch.zeros(6, dtype=torch.int32)}, r"labels\.long"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, "one target per input"),
        ({"labels": torch.zeros(6, 1, dtype=torch.int64)}, r"shape \[N\]"),
        ({"labels": torch.tensor([0, 0, 3, 0, 0, 0])}, "label 3 of example 2 is out of range"),
        ({"labels": torch.tensor([0, 0, 0, 0, 0, -1])}, "label -1 of example 5 is out of range"),
    ],
)
def test_refuses_what_is_not_a_set_of_labelled_images(change: dict[str, Any], message: str) -> None:
    toy = images()
    fields = {"images": toy.images, "labels": toy.labels, **change}
    with pytest.raises(AdvbnnError, match=message):
        ImageSet(**fields, classes=toy.classes, name="toy")


class TestFromTensors:
    def test_uint8_becomes_an_image_set_and_floating_point_is_unchanged(self) -> None:
        made = from_tensors(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 2, 1, 0]))
        assert isinstance(made, ImageSet) and made.classes == ("0", "1", "2")
        inputs = torch.rand(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        made = from_tensors(inputs, LABELS, classes=np.array(["no", "yes"]))  # type: ignore[arg-type]
        assert isinstance(made, TensorSet)
        assert made.tensors()[0] is inputs
        assert made.classes == ("no", "yes")

    def test_the_number_of_classes_may_be_of_any_integer_type(self) -> None:
        for count in (3, np.int64(3), torch.tensor(3)):
            assert from_tensors(torch.zeros(2, 3), LABELS, classes=count).classes == ("0", "1", "2")  # type: ignore

    def test_floating_point_targets_mean_regression(self) -> None:
        made = from_tensors(torch.linspace(-3, 3, 5)[:, None], torch.linspace(-9, 9, 5))
        assert isinstance(made, TensorSet)
        assert made.classes == () and "regression" in repr(made)
        assert made.subset([1]).targets.tolist() == [-4.5]
        of_images = from_tensors(torch.full((2, 1, 2, 2), 255, dtype=torch.uint8), torch.tensor([0.5, 1.5]))
        assert of_images.tensors()[0].unique().tolist() == [1.0]

    @pytest.mark.parametrize(
        ("inputs", "targets", "classes", "message"),
        [
            (torch.full((2, 1, 2, 2), 255.0), LABELS, None, r"lie in \[0, 1\].*divide by 255"),
            (torch.full((2, 1, 2, 2), -0.1), LABELS, None, r"lie in \[0, 1\]"),
            (torch.full((2, 3), float("nan")), LABELS, None, "inputs contain NaN"),
            (torch.zeros(2, 3), torch.tensor([0.0, float("inf")]), None, "targets contain NaN"),
            (torch.zeros(2, 3), LABELS, 1, "label 1 of example 1"),
            (torch.zeros(2, 3), LABELS, 2.0, "mine: classes.* whole number.* 2.0"),
            (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), 2, r"targets\.long"),
            (torch.zeros(2, 3), [0, 1], None, r"targets .* got list; use torch\.as_tensor"),
            (torch.zeros(2, 3, dtype=torch.int64), LABELS, None, "inputs must be floating point"),
        ],
    )
    def test_refuses_bad_values(self, inputs: Any, targets: Any, classes: Any, message: str) -> None:
        with pytest.raises(AdvbnnError, match=message):
            from_tensors(inputs, targets, name="mine", classes=classes)
