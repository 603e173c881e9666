"""What the page does, without a page."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from advbnn.attacks.threat import Threat
from advbnn.data import ImageSet, from_tensors, to_float
from advbnn.errors import AdvbnnError, ArgumentError
from advbnn.play.playground import THUMBNAILS, UNKNOWN, Playground, interleaved
from advbnn.play.trial import Network
from images import save
from trained_nets import bnn, digits, net

IMAGES = to_float(digits().images)


def playground(data: ImageSet | None = None) -> Playground:
    networks = [
        Network(label=label, model=model, reference=IMAGES[:20], samples=2)
        for label, model in (("none", net()), ("adv_bnn", bnn()))
    ]
    return Playground(networks, data or digits(), Threat("linf", 0.1))


def test_rows_go_through_the_classes_again_and_again() -> None:
    assert interleaved(torch.tensor([1, 1, 0, 1, 0, 2])) == [2, 0, 5, 4, 1, 3]
    first = playground().order[:10]
    assert digits().labels[first].tolist() == list(range(10))


def test_thumbnails_differ_at_every_turn_and_begin_again() -> None:
    play = playground()
    assert play.thumbnails(0).count("<img") == THUMBNAILS
    assert play.thumbnails(0) != play.thumbnails(1)
    assert play.thumbnails(len(digits()) // THUMBNAILS) == play.thumbnails(0)


def test_images_are_picked_drawn_and_uploaded(tmp_path: Path) -> None:
    play = playground()
    image, truth = play.picked(3)
    assert torch.equal(image, IMAGES[3]) and truth == str(int(digits().labels[3]))

    pixels = np.zeros((40, 40, 4), np.uint8)
    pixels[10:30, 18:22] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    uri = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    image, truth = play.drawn(uri)
    assert image.shape == (1, 8, 8) and truth == UNKNOWN and image.mean() < 0.5

    inverted = ImageSet(255 - digits().images, digits().labels, digits().classes, "inverted")
    assert playground(inverted).drawn(uri)[0].mean() > 0.5

    save(tmp_path / "grey.png", 51)
    image, truth = play.uploaded(str(tmp_path / "grey.png"))
    torch.testing.assert_close(image, torch.full((1, 8, 8), 0.2))
    assert truth == UNKNOWN
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(AdvbnnError, match="text.png.*readable"):
        play.uploaded(str(tmp_path / "text.png"))


def test_cards_are_of_the_chosen_networks() -> None:
    play = playground()
    assert play.titles == ["No defence", "Adv-BNN"]
    settings = {"attack": "fgsm", "radius": 0.1, "eot": 1, "coverage": 0.9}
    both = play.cards(IMAGES[0], "0", play.titles, **settings)
    one = play.cards(IMAGES[0], UNKNOWN, ["Adv-BNN"], **settings)
    assert both.count("<article") == 2 and one.count("<article") == 1
    assert 'data-network="adv_bnn"' in one
    assert "Choose a network" in play.cards(IMAGES[0], "0", [], **settings)


def test_only_classes_of_images_are_shown() -> None:
    points = from_tensors(torch.rand(4, 3), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ArgumentError, match="data .*grey or colour"):
        Playground([], points, Threat("linf", 0.1))
