"""Networks trained on the digits within seconds, shared by the tests of attacks."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from advbnn import data, models
from advbnn.bayes.mean_field import Bayesian, bayesianize
from advbnn.bayes.priors import GaussianPrior


class Images(NamedTuple):
    x: Tensor
    y: Tensor


def _batch(split) -> Images:
    return Images(split.images.float() / split.images.max(), split.labels)


def _train(model: nn.Module) -> None:
    images, optimizer = _batch(data.load("digits").train), torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        rows = torch.randint(len(images.x), (64,))
        loss = nn.functional.cross_entropy(model(images.x[rows]), images.y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.requires_grad_(True).eval()


@pytest.fixture(scope="session")
def digits() -> Images:
    """200 test images."""
    x, y = _batch(data.load("digits").test)
    return Images(x[:200], y[:200])


@pytest.fixture(scope="session")
def net() -> nn.Module:
    """A deterministic network."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = models.build("small_cnn", classes=10, image_size=8, channels=1)
        _train(net)
    return net


@pytest.fixture(scope="session")
def bnn() -> Bayesian:
    """A random network whose weight samples disagree enough to matter."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = bayesianize(
            models.build("small_cnn", classes=10, image_size=8, channels=1), prior=GaussianPrior(std=0.2), init_std=0.05
        )
        _train(model)
    return model
