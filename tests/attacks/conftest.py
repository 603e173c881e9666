"""The trained networks and images of `judged`, as fixtures."""

from typing import NamedTuple

import pytest
from torch import Tensor

import judged
from advbnn.data import to_float


class Images(NamedTuple):
    x: Tensor
    y: Tensor


@pytest.fixture(scope="session")
def digits() -> Images:
    """120 test images."""
    return Images(to_float(judged.digits().images), judged.digits().labels)


net = pytest.fixture(judged.net, scope="session", name="net")
bnn = pytest.fixture(judged.bnn, scope="session", name="bnn")
