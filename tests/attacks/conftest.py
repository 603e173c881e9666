"""The trained networks and images of `trained_nets`, as fixtures."""

from typing import NamedTuple

import pytest
from torch import Tensor

import trained_nets
from advbnn.data import to_float


class Images(NamedTuple):
    x: Tensor
    y: Tensor


@pytest.fixture(scope="session")
def digits() -> Images:
    """120 test images."""
    return Images(to_float(trained_nets.digits().images), trained_nets.digits().labels)


net = pytest.fixture(trained_nets.net, scope="session", name="net")
bnn = pytest.fixture(trained_nets.bnn, scope="session", name="bnn")
