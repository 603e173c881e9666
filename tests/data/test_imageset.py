from typing import Any

import numpy as np
import pytest
import torch

from advbnn.data import ImageSet, TensorSet, from_tensors


def images(count: int = 6, classes: int = 3) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 4, 5), dtype=torch.uint8, generator=generator)
    return ImageSet(pixels, torch.arange(count) % classes, tuple("abc"[:classes]), "toy")


def test_describes_itself() -> None:
    toy = images()
    assert len(toy) == 6
    assert toy.shape == (1, 4, 5)
    assert toy.targets is toy.labels
    assert repr(toy) == "ImageSet('toy': 6 of 1x4x5, 3 classes, on cpu)"


def test_subset_keeps_the_order_asked_for_and_says_that_it_is_a_part() -> None:
    toy = images()
    part = toy.subset([4, 0])
    assert torch.equal(part.images, toy.images[[4, 0]])
    assert part.labels.tolist() == [1, 0]
    assert part.name == "toy[2 of 6]"
    assert toy.subset(torch.arange(6)).name == "toy"


@pytest.mark.parametrize("indices", [[], [6], [-1], [[0, 1]]])
def test_subset_refuses_rows_that_do_not_exist(indices: list[int]) -> None:
    with pytest.raises(ValueError, match="indices must"):
        images().subset(indices)


def test_a_mask_means_its_true_rows() -> None:
    toy = images()
    mask = toy.labels == 2
    for form in (mask, mask.tolist(), mask.numpy()):
        assert torch.equal(toy.subset(form).images, toy.images[[2, 5]])
    assert toy.subset(torch.tensor([5, 2], dtype=torch.int32)).labels.tolist() == [2, 2]


def test_refuses_masks_of_other_sets_and_what_numbers_no_row() -> None:
    with pytest.raises(
        ValueError, match=r"one bool for each of the 6 rows, got shape \[5\]; make the mask from this set"
    ):
        images().subset(torch.ones(5, dtype=torch.bool))
    with pytest.raises(ValueError, match="indices must be a non-empty list"):
        images().subset(torch.zeros(6, dtype=torch.bool))
    with pytest.raises(TypeError, match="indices must be row numbers of an integer type.*got torch.float32; convert"):
        images().subset(torch.tensor([0.0, 1.5]))


def test_fingerprint_follows_the_contents_only() -> None:
    toy = images()
    same = ImageSet(toy.images.clone(), toy.labels.clone(), toy.classes, "another name")
    pixel = toy.images.clone()
    pixel[0, 0, 0, 0] ^= 1
    assert toy.fingerprint() == same.fingerprint()
    others = [
        ImageSet(pixel, toy.labels, toy.classes, "toy"),
        ImageSet(toy.images, toy.labels.flip(0), toy.classes, "toy"),
        ImageSet(toy.images, toy.labels, ("a", "b", "d"), "toy"),
        ImageSet(toy.images.reshape(6, 1, 5, 4), toy.labels, toy.classes, "toy"),
    ]
    assert len({toy.fingerprint(), *(other.fingerprint() for other in others)}) == 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_fingerprint_of_any_floating_point_type(dtype: torch.dtype) -> None:
    inputs = torch.linspace(0, 1, 8, dtype=dtype).reshape(4, 2)
    first, second = (from_tensors(x, torch.zeros(4)).fingerprint() for x in (inputs, inputs.flip(0)))
    assert first != second


def test_to_the_same_device_copies_nothing() -> None:
    toy = images()
    assert toy.to("cpu").images.data_ptr() == toy.images.data_ptr()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"images": torch.zeros(6, 1, 4, 5)}, TypeError, "images must be uint8"),
        ({"images": torch.zeros(6, 4, 5, dtype=torch.uint8)}, TypeError, "images must be uint8"),
        ({"images": torch.zeros(0, 1, 4, 5, dtype=torch.uint8)}, TypeError, "none of them 0"),
        ({"images": np.zeros((6, 1, 4, 5), np.uint8)}, TypeError, r"images must be a tensor, got ndarray; torch\.as_t"),
        ({"labels": [0] * 6}, TypeError, "labels must be a tensor, got list"),
        ({"labels": torch.zeros(6)}, TypeError, "labels must be int64"),
        ({"labels": torch.zeros(6, dtype=torch.int32)}, TypeError, r"labels\.long"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, ValueError, "one target per input"),
        ({"labels": torch.zeros(6, 1, dtype=torch.int64)}, TypeError, r"shape \[N\]"),
        ({"labels": torch.tensor([0, 0, 3, 0, 0, 0])}, ValueError, "label 3 of example 2 is out of range"),
        ({"labels": torch.tensor([0, 0, 0, 0, 0, -1])}, ValueError, "label -1 of example 5 is out of range"),
    ],
)
def test_refuses_what_is_not_a_set_of_labelled_images(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    toy = images()
    fields = {"images": toy.images, "labels": toy.labels, **change}
    with pytest.raises(error, match=message):
        ImageSet(**fields, classes=toy.classes, name="toy")


def test_a_list_of_classes_is_as_good_as_a_tuple() -> None:
    toy = images()
    same = ImageSet(toy.images, toy.labels, list("abc"), "toy")  # type: ignore[arg-type]
    assert same.classes == toy.classes and same.fingerprint() == toy.fingerprint()


class TestFromTensors:
    def test_refuses_arrays_with_the_remedy(self) -> None:
        inputs, targets = torch.zeros(2, 3), torch.tensor([0, 1])
        with pytest.raises(TypeError, match=r"mine: inputs must be a tensor, got ndarray; torch.as_tensor"):
            from_tensors(inputs.numpy(), targets, name="mine")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="targets must be a tensor, got list"):
            TensorSet(inputs, [0, 1], ("a", "b"), "mine")  # type: ignore[arg-type]

    def test_uint8_images_become_an_image_set(self) -> None:
        made = from_tensors(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 2, 1, 0]))
        assert isinstance(made, ImageSet)
        assert made.classes == ("0", "1", "2")

    def test_floating_point_is_kept_as_it_is(self) -> None:
        inputs = torch.rand(4, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        made = from_tensors(inputs, torch.tensor([0, 1, 1, 0]), classes=["no", "yes"])
        assert isinstance(made, TensorSet)
        assert made.tensors()[0] is inputs
        assert made.classes == ("no", "yes")

    @pytest.mark.parametrize("count", [3, np.int64(3), torch.tensor(3)], ids=["int", "numpy", "torch"])
    def test_the_number_of_classes_may_be_of_any_integer_type(self, count: int) -> None:
        assert from_tensors(torch.zeros(2, 3), torch.tensor([0, 1]), classes=count).classes == ("0", "1", "2")

    def test_class_names_may_come_in_an_array(self) -> None:
        made = from_tensors(torch.zeros(2, 3), torch.tensor([0, 1]), classes=np.array(["no", "yes"]))  # type: ignore[arg-type]
        assert made.classes == ("no", "yes")

    def test_floating_point_targets_mean_regression(self) -> None:
        made = from_tensors(torch.linspace(-3, 3, 5)[:, None], torch.linspace(-9, 9, 5))
        assert isinstance(made, TensorSet)
        assert made.classes == ()
        assert "regression" in repr(made)
        assert made.subset([1]).targets.tolist() == [-4.5]

    def test_images_of_a_regression_are_scaled_like_others(self) -> None:
        made = from_tensors(torch.full((2, 1, 2, 2), 255, dtype=torch.uint8), torch.tensor([0.5, 1.5]))
        assert made.tensors()[0].unique().tolist() == [1.0]

    @pytest.mark.parametrize(
        ("inputs", "targets", "options", "message"),
        [
            (torch.full((2, 1, 2, 2), 255.0), torch.tensor([0, 1]), {}, r"lie in \[0, 1\].*divide by 255"),
            (torch.full((2, 1, 2, 2), -0.1), torch.tensor([0, 1]), {}, r"lie in \[0, 1\]"),
            (torch.full((2, 3), float("nan")), torch.tensor([0, 1]), {}, "NaN"),
            (torch.zeros(2, 3), torch.tensor([0.0, float("inf")]), {}, "targets hold NaN or infinity"),
            (torch.zeros(2, 3), torch.tensor([0, 1]), {"classes": 1}, "label 1 of example 1"),
            (torch.zeros(2, 3), torch.tensor([0, 1]), {"classes": True}, "mine: classes.*whole number, got True"),
            (torch.zeros(2, 3), torch.tensor([0, 1]), {"classes": 2.0}, "positive whole number, got 2.0"),
            (torch.zeros(2, 3), torch.tensor([0, 1]), {"classes": 0}, "positive whole number, got 0"),
            (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), {"classes": 2}, r"targets\.long"),
        ],
    )
    def test_refuses_bad_values(
        self, inputs: torch.Tensor, targets: torch.Tensor, options: dict[str, int], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            from_tensors(inputs, targets, name="mine", **options)

    def test_refuses_what_is_no_tensor(self) -> None:
        with pytest.raises(TypeError, match="targets must be a tensor, got list"):
            from_tensors(torch.zeros(2, 3), [0, 1])  # type: ignore[arg-type]

    def test_refuses_integer_inputs(self) -> None:
        with pytest.raises(TypeError, match="inputs must be floating point"):
            from_tensors(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, 1]))
