import hashlib

import torch

from advbnn.data import load


def test_holds_the_published_values() -> None:
    digits = load("digits")
    assert (len(digits.train), len(digits.test), digits.train.shape) == (1297, 500, (1, 8, 8))
    assert digits.train.classes == tuple("0123456789")
    images = torch.cat([digits.train.images, digits.test.images])
    labels = torch.cat([digits.train.labels, digits.test.labels])
    levels = (images.double() * 16 / 255).round().to(torch.uint8)
    content = levels.numpy().tobytes() + labels.to(torch.uint8).numpy().tobytes()
    assert hashlib.sha256(content).hexdigest() == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
    assert images.unique().numel() == 17
    assert (images.min(), images.max()) == (0, 255)
