"""The published files themselves, if the environment variable ADVBNN_DATA names a folder that contains them."""

import os

import pytest

from advbnn.data import DataError, ImageSet, Splits, load


def published(name: str) -> Splits[ImageSet]:
    try:
        return load(name)
    except (DataError, ValueError) as error:
        if "ADVBNN_DATA" not in os.environ or "contains none of" in str(error):
            pytest.skip(str(error))
        raise


def test_cifar10() -> None:
    cifar10 = published("cifar10")
    assert (len(cifar10.train), len(cifar10.test)) == (50_000, 10_000)
    assert cifar10.train.labels.bincount().tolist() == [5000] * 10
    means = cifar10.train.images.double().mean((0, 2, 3)) / 255
    assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)


def test_stl10() -> None:
    stl10 = published("stl10")
    official = (len(stl10.train), len(stl10.test)) == (5000, 8000)
    assert (stl10.train.shape, stl10.train.name) == ((3, 96, 96), "stl10" if official else "stl10-subset")
