"""Batches of a loader as a training set: what is known of it, its order, and what is refused."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from advbnn.data.streams import StreamBatches, stream
from advbnn.errors import ArgumentError, ArgumentTypeError, DataError

X, Y = torch.rand(22, 1, 4, 4), torch.arange(22) % 3


class Noisy(Dataset[tuple[Tensor, int]]):
    classes = ("a", "b", "c")

    def __len__(self) -> int:
        return 22

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        noise = torch.rand(1, 4, 4) * np.random.rand() * random.random()
        return X[row] * noise, row % 3


def test_what_is_known_of_a_loader() -> None:
    found = stream(DataLoader(Subset(Noisy(), range(10)), batch_size=4))
    assert (len(found), found.sizes, found.classes, found.shape) == (10, (4, 4, 2), ("a", "b", "c"), (1, 4, 4))
    assert stream(DataLoader(TensorDataset(X, Y), batch_size=4, drop_last=True)).sizes == (4,) * 5


def test_any_iterable_is_counted() -> None:
    found = stream([(X[:5], Y[:5]), (X[5:], Y[5:])])
    assert (len(found), found.sizes, len(found.classes)) == (22, (5, 17), 3)

    class Lines(IterableDataset[tuple[Tensor, Tensor]]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(zip(X, Y, strict=True))

    state = torch.random.get_rng_state()
    assert stream(DataLoader(Lines(), batch_size=8)).sizes == (8, 8, 6)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_an_epoch_is_repeated_exactly_and_from_any_step() -> None:
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
    batches = StreamBatches(stream(loader), seed=3)
    state = torch.random.get_rng_state()
    whole = list(batches.epoch(1))
    assert torch.equal(torch.random.get_rng_state(), state)
    rest = list(batches.epoch(1, start_step=2))
    assert len(whole) == len(batches) == 6 and len(rest) == 4
    assert all(
        torch.equal(a, b) for one, other in zip(whole[2:], rest, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert not torch.equal(whole[0][0], next(batches.epoch(2))[0])
    assert not torch.equal(whole[0][0], next(StreamBatches(stream(loader), seed=4).epoch(1))[0])


def test_uint8_images_become_numbers_in_0_to_1() -> None:
    found = stream([((X * 255).byte(), Y.int())])
    (batch,) = StreamBatches(found).epoch(0)
    assert batch[0].dtype == torch.float32 and float(batch[0].max()) <= 1 and batch[1].dtype == torch.int64


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="anew for every epoch"):
        stream(iter([(X, Y)]))
    with pytest.raises(ArgumentTypeError, match="pair"):
        stream([X])
    with pytest.raises(DataError, match=r"\[0, 1\].*255"):
        stream([(X * 255, Y)])
    with pytest.raises(DataError, match="no batch"):
        stream([])
    with pytest.raises(ArgumentError, match="validation"):
        stream([(X, Y)]).subset([0])
    changing = [(X, Y), (X, Y + 5)]
    with pytest.raises(DataError, match=r"0\.\.2"):
        list(StreamBatches(stream(changing)).epoch(0))
    changing = [(X, Y), (X, Y)]
    short = StreamBatches(stream(changing))
    changing.pop()
    with pytest.raises(DataError, match="same number"):
        list(short.epoch(0))
