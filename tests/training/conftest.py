"""A few digits to train on."""

import pytest

from advbnn import data
from advbnn.data import ImageSet, Splits


@pytest.fixture(scope="session")
def digits() -> Splits[ImageSet]:
    whole = data.load("digits")
    return Splits(whole.train.subset(range(72)), whole.test.subset(range(40)))
