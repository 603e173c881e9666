"""Cards show the numbers of a trial."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch

from advbnn.attacks.threat import Threat
from advbnn.data import to_float
from advbnn.play.card import MOST_CLASSES, card, headline, perturbation, plot
from advbnn.play.trial import Answer, Network, Trial, trial
from advbnn.report.style import looks
from trained_nets import bnn, digits

CLASSES = digits().classes
LOOK = looks(["adv_bnn"])["adv_bnn"]


def answer(label: int = 0, samples: int = 4, classes: int = 3, abstains: bool = False) -> Answer:
    probs = torch.full((samples, classes), 0.2 / (classes - 1), dtype=torch.float64)
    probs[:, label] = 0.8
    probs[0] = 1 / classes
    mean = probs.mean(0)
    return Answer(
        label=label,
        samples=probs,
        mean=mean,
        interval=torch.stack([mean - 0.1, mean + 0.1], 1),
        entropy=0.5,
        mutual_information=0.1,
        abstains=abstains,
    )


def made_up(before: Answer, after: Answer, truth: int | None) -> Trial:
    image = torch.zeros(1, 4, 4)
    return Trial(network="x", truth=truth, image=image, attacked=image, before=before, after=after, threshold=0.3)


@pytest.mark.parametrize(
    ("before", "after", "truth", "abstains", "kind", "words"),
    [
        (0, 0, 0, False, "right", "Not fooled: says a"),
        (0, 0, 0, True, "right", "Not fooled: says a, and abstains"),
        (0, 1, 0, False, "wrong", "Fooled: says b instead of a"),
        (0, 1, 0, True, "wrong", "Fooled: says b instead of a, but abstains"),
        (0, 1, None, False, "wrong", "Fooled: says b instead of a"),
        (2, 1, 0, False, "wrong", "Wrong, also without attack: says b instead of a"),
        (1, 1, None, False, "right", "Not fooled: says b"),
    ],
)
def test_headline(before: int, after: int, truth: int | None, abstains: bool, kind: str, words: str) -> None:
    found = headline(made_up(answer(before), answer(after, abstains=abstains), truth), "abc")
    assert (found[0], re.sub("<.*?>", "", found[1])) == (kind, words)


def test_the_plot_has_a_dot_for_every_sample_and_class_at_its_probability() -> None:
    one = answer(samples=4)
    drawn = ElementTree.fromstring(plot(one, range(3), "abc"))
    rows = drawn.findall("g")
    axis = {text.text: float(text.attrib["x"]) for text in drawn.findall("text")}
    for index, row in enumerate(rows):
        dots = [float(dot.attrib["cx"]) for dot in row.findall("circle")]
        expected = axis["0"] + one.samples[:, index] * (axis["1"] - axis["0"])
        assert dots == pytest.approx(expected.tolist(), abs=0.06)
        (mean,) = (line for line in row.findall("line") if line.attrib["class"] == "mean")
        assert float(mean.attrib["x1"]) == pytest.approx(expected.mean().item(), abs=0.06)


def test_a_card_of_many_classes_shows_the_probable_ones_and_the_true_one() -> None:
    many = made_up(answer(5, classes=50), answer(40, classes=50), truth=17)
    drawn = card(many, LOOK, [f"class{number}" for number in range(50)])
    for name in ("class5", "class40", "class17"):
        assert drawn.count(f">{name}<") >= 2
    (first, _) = re.findall("<svg.*?</svg>", drawn)
    assert len(ElementTree.fromstring(first).findall("g")) == MOST_CLASSES


def test_names_are_escaped() -> None:
    drawn = card(made_up(answer(0), answer(1), 0), replace(LOOK, title="<b>net"), ["<i>x", "y&z", "c"])
    assert "<i>x" not in drawn and "<b>net" not in drawn and "y&z" not in drawn
    ElementTree.fromstring(drawn.replace("&times;", "x").replace('alt="">', 'alt=""/>'))


def test_a_card_shows_the_numbers_of_a_trial() -> None:
    images = to_float(digits().images)
    network = Network(label="adv_bnn", model=bnn(), reference=images[:20], samples=3)
    done = trial(network, images[3], Threat("linf", 0.1), truth=3, eot=1)
    drawn = card(done, LOOK, CLASSES)
    for one in (done.before, done.after):
        assert f"{one.entropy:.3f}" in drawn and f"{one.mutual_information:.3f}" in drawn
        assert f"{100 * one.mean[one.label].item():.1f}" in drawn
    assert f"{done.threshold:.3f}" in drawn and LOOK.light in drawn and "Adv-BNN" in drawn
    assert drawn.count("data:image/png") == 3


def test_the_perturbation_of_a_grey_image_is_signed_by_colour() -> None:
    image = torch.full((1, 1, 3), 0.5)
    change, factor = perturbation(image, image + torch.tensor([-0.1, 0.0, 0.1]))
    darker, same, lighter = change[:, 0].T
    assert factor == pytest.approx(10)
    assert same.tolist() == [1, 1, 1]
    assert darker.argmax() == 2 and lighter.argmax() == 0  # blue and orange


def test_the_perturbation_of_a_colour_image_is_around_grey() -> None:
    image = torch.full((3, 2, 2), 0.5)
    attacked = image.clone()
    attacked[0, 0, 0] += 0.05
    attacked[1, 0, 0] -= 0.025
    change, factor = perturbation(image, attacked)
    assert factor == pytest.approx(10, rel=1e-4)
    torch.testing.assert_close(image + (change - 0.5) / factor, attacked)
    nothing, factor = perturbation(image, image)
    assert factor == 1 and torch.equal(nothing, image)
