import math

import pytest
import torch

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.evaluation.accuracy import Evaluation
from advbnn.report import attacked_images
from advbnn.report.pictures import AttackedImage, by_model
from judged import bnn, digits
from made_up_records import picture

ATTACK = PGD(Threat("linf", 0.2), steps=5, eot=2)


@pytest.fixture(scope="module")
def images() -> list[AttackedImage]:
    return attacked_images(bnn(), digits(), ATTACK, range(2, 8), name="PGD-5", label="bnn", samples=5, seed=3)


def test_images_are_those_of_the_data_and_the_attack_keeps_to_its_ball(images: list[AttackedImage]) -> None:
    assert len(images) == 6
    for row, image in enumerate(images, start=2):
        assert torch.equal((image.clean * 255).round().to(torch.uint8), digits().images[row])
        assert image.truth == digits().classes[int(digits().labels[row])]
        assert 0 < (image.adversarial - image.clean).abs().max().item() <= 0.2 + 1e-6
        assert (image.model, image.attack, image.eps, image.classes) == ("bnn", "PGD-5", 0.2, 10)


def test_answers_are_those_of_the_ensemble(images: list[AttackedImage]) -> None:
    judge = Evaluation(bnn(), digits(), samples=5, seeds=[3])
    for when in ("before", "after"):
        pixels = torch.stack([image.clean if when == "before" else image.adversarial for image in images])
        prediction = judge.classify(pixels, 3)
        for row, image in enumerate(images):
            answer = getattr(image, when)
            assert answer.label == digits().classes[int(prediction.label[row])]
            assert answer.probability == pytest.approx(prediction.probs[row].max().item(), abs=1e-5)
            assert answer.entropy == pytest.approx(prediction.entropy[row].item(), abs=1e-5)
            assert 0 <= answer.disagreement <= answer.entropy <= image.largest_entropy == math.log(10)
    assert any(image.after.label != image.truth for image in images)


def test_the_change_is_magnified_to_the_full_range(images: list[AttackedImage]) -> None:
    image = images[0]
    assert image.perturbation.min().item() >= 0
    assert (image.perturbation - 0.5).abs().max().item() == pytest.approx(0.5)
    assert torch.allclose(image.clean + (image.perturbation - 0.5) / image.magnified, image.adversarial, atol=1e-6)


def test_no_change_is_plain_grey() -> None:
    image = picture("adv")
    unchanged = AttackedImage(**{**vars(image), "adversarial": image.clean})
    assert torch.equal(unchanged.perturbation, torch.full_like(image.clean, 0.5))
    assert unchanged.magnified == 1.0


def test_images_are_put_in_the_order_of_the_models() -> None:
    assert list(by_model([picture("b"), picture("a"), picture("b")], ["a", "b", "c"])) == ["a", "b"]
