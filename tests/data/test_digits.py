import hashlib

import torch

from advbnn.data import load, load_digits


def test_sizes_and_classes() -> None:
    digits = load_digits()
    assert (len(digits.train), len(digits.test)) == (1297, 500)
    assert digits.train.shape == (1, 8, 8)
    assert digits.train.classes == tuple("0123456789")
    assert digits.test.labels.bincount().tolist() == [50, 51, 49, 51, 51, 51, 51, 50, 46, 50]


def test_holds_the_published_values() -> None:
    digits = load("digits")
    images = torch.cat([digits.train.images, digits.test.images])
    labels = torch.cat([digits.train.labels, digits.test.labels])
    levels = (images.double() * 16 / 255).round().to(torch.uint8)
    content = levels.numpy().tobytes() + labels.to(torch.uint8).numpy().tobytes()
    assert hashlib.sha256(content).hexdigest() == ("87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826")
    assert levels[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert images.unique().numel() == 17
    assert (images.min(), images.max()) == (0, 255)
