"""Single images under attack, and their PNG files."""

import base64
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.errors import ArgumentError
from advbnn.evaluation.accuracy import Evaluation
from advbnn.report.images import AttackedImage, attacked_images, by_model, data_uri, png
from made_up_records import picture
from trained_nets import bnn, digits

ATTACK = PGD(Threat("linf", 0.2), steps=5, eot=2)


@pytest.fixture(scope="module")
def images() -> list[AttackedImage]:
    return attacked_images(bnn(), digits(), ATTACK, range(2, 8), name="PGD-5", label="bnn", samples=5, seed=3)


def test_images_come_from_the_data_and_stay_within_the_radius(images: list[AttackedImage]) -> None:
    assert len(images) == 6
    for row, image in enumerate(images, start=2):
        assert torch.equal((image.clean * 255).round().to(torch.uint8), digits().images[row])
        assert image.truth == digits().classes[int(digits().labels[row])]
        assert 0 < (image.adversarial - image.clean).abs().max().item() <= 0.2 + 1e-6
        assert (image.model, image.attack, image.eps, image.classes) == ("bnn", "PGD-5", 0.2, 10)


def test_predictions_are_those_of_the_ensemble(images: list[AttackedImage]) -> None:
    evaluation = Evaluation(bnn(), digits(), samples=5, seeds=[3])
    for when, pixels in (("before", "clean"), ("after", "adversarial")):
        expected = evaluation.classify(torch.stack([getattr(image, pixels) for image in images]), 3)
        for row, image in enumerate(images):
            found = getattr(image, when)
            assert found.label == digits().classes[int(expected.label[row])]
            assert found.probability == pytest.approx(expected.probs[row].max().item(), abs=1e-5)
            assert found.entropy == pytest.approx(expected.entropy[row].item(), abs=1e-5)
            assert 0 <= found.disagreement <= found.entropy <= image.largest_entropy == math.log(10)
    assert any(image.after.label != image.truth for image in images)


def test_the_perturbation_is_magnified_to_the_full_range(images: list[AttackedImage]) -> None:
    image = images[0]
    assert (image.perturbation - 0.5).abs().max().item() == pytest.approx(0.5)
    assert torch.allclose(image.clean + (image.perturbation - 0.5) / image.magnified, image.adversarial, atol=1e-6)
    unchanged = AttackedImage(**{**vars(image), "adversarial": image.clean})
    assert torch.equal(unchanged.perturbation, torch.full_like(image.clean, 0.5))
    assert unchanged.magnified == 1.0


def test_images_are_in_the_order_of_the_models() -> None:
    assert list(by_model([picture("b"), picture("a"), picture("b")], ["a", "b", "c"])) == ["a", "b"]
    with pytest.raises(ArgumentError, match="images .*'mine'.*'a'"):
        by_model([picture("mine")], ["a"])


@given(channels=st.sampled_from([1, 3]), height=st.integers(1, 9), width=st.integers(1, 9), seed=st.integers(0, 99))
def test_another_reader_sees_the_same_pixels(channels: int, height: int, width: int, seed: int) -> None:
    levels = torch.randint(0, 256, (channels, height, width), generator=torch.Generator().manual_seed(seed))
    kind, _, content = data_uri(levels / 255).partition(",")
    assert kind == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(content))) as image:
        assert image.size == (width, height)
        read = np.asarray(image).reshape(height, width, channels)
    assert (read.transpose(2, 0, 1) == levels.numpy()).all()


def test_values_out_of_range_are_clipped_and_other_shapes_are_refused() -> None:
    with Image.open(io.BytesIO(png(torch.tensor([[[-1.0, 2.0]]])))) as image:
        assert np.asarray(image).tolist() == [[0, 255]]
    with pytest.raises(ArgumentError, match="pixels "):
        png(torch.zeros(2, 8, 8))
