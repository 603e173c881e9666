"""The trained networks and images of `trained_nets`, as fixtures."""

from typing import NamedTuple

import pytest
from torch import Tensor, nn

import trained_nets
from advbnn.bayes.mean_field import Bayesian
from advbnn.data import to_float


class Images(NamedTuple):
    x: Tensor
    y: Tensor


@pytest.fixture(scope="session")
def digits() -> Images:
    """120 test images."""
    return Images(to_float(trained_nets.digits().images), trained_nets.digits().labels)


@pytest.fixture(scope="session")
def net() -> nn.Module:
    """A deterministic network."""
    return trained_nets.net()


@pytest.fixture(scope="session")
def bnn() -> Bayesian:
    """A random network whose weight samples disagree enough to matter."""
    return trained_nets.bnn()
