"""Seeding a block leaves the rest alone; every purpose has its own seed; a kept state is drawn anew."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from advbnn.randomness import (
    Resampled,
    crafting_seed,
    derive_seed,
    resample,
    scoring_seed,
    seeded,
    with_fresh_state,
)


def test_a_seeded_block_is_repeatable_and_restores_the_state() -> None:
    before = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(4)
    with pytest.raises(KeyboardInterrupt), seeded(3):
        assert torch.equal(torch.rand(4), first)
        raise KeyboardInterrupt
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_it_uses_the_callers_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with seeded(None):
        assert torch.equal(torch.rand(2), expected)


def test_every_seed_purpose_and_index_has_its_own_seed() -> None:
    purposes = ("craft", "score", "validation")
    seeds = {derive_seed(s, purpose, index) for s in range(20) for purpose in purposes for index in range(20)}
    # the CPU's generator uses the lower 32 bits alone
    assert len({seed % 2**32 for seed in seeds}) == len(seeds) == 20 * 3 * 20
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_never_change_between_versions() -> None:
    assert derive_seed(0, "score") == scoring_seed(0) == 8195802296681552828
    assert derive_seed(1, "craft", 2) == crafting_seed(1, 2) == 744959877471627314


class Layer(nn.Module):
    """Adds noise that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = torch.zeros(3)

    def resample(self, seed: int) -> None:
        assert 0 <= seed < 2**32
        self.noise = torch.randn(3, generator=torch.Generator().manual_seed(seed))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.noise


class Together(nn.Sequential):
    """Gives all its layers the same noise."""

    def resample(self, seed: int) -> None:
        for layer in self:
            layer.noise = torch.full((3,), float(seed))


def test_every_part_gets_its_own_state_from_the_seed() -> None:
    net = nn.Sequential(Layer(), nn.Sequential(Layer(), nn.ReLU()))
    assert resample(net, 5) and not resample(nn.Linear(3, 3), 5)
    first, second = net[0].noise, net[1][0].noise
    assert not torch.equal(first, second)
    assert resample(net, 6) and not torch.equal(net[0].noise, first)
    assert resample(net, 5) and torch.equal(net[0].noise, first) and torch.equal(net[1][0].noise, second)


def test_a_module_that_coordinates_its_parts_has_the_last_word() -> None:
    net = nn.Sequential(Together(Layer(), Layer()))
    resample(net, 1)
    assert torch.equal(net[0][0].noise, net[0][1].noise)


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.rand(()).item(), lambda: np.random.rand(), random.random],
    ids=["torch", "numpy", "python"],
)
def test_a_method_under_another_name_may_use_any_default_generator(draw: Callable[[], float]) -> None:
    class Other(nn.Module):
        state = 0.0

        def new_state(self) -> None:
            self.state = draw()

        def forward(self, x: Tensor) -> Tensor:
            return x + self.state

    net, x = Other(), torch.zeros(())
    with pytest.raises(ValueError, match="resample.*by="):
        Resampled(net)
    fresh = Resampled(net, by=lambda net, seed: net.new_state())
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with seeded(3):
        outputs = [fresh(x).item() for _ in range(4)]
    assert len(set(outputs)) == 4
    with seeded(3):
        assert [fresh(x).item() for _ in range(4)] == outputs
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_only_what_keeps_its_state_is_wrapped_and_only_once() -> None:
    class Unrelated(nn.Module):
        resample = "bilinear"

    class Dangerous(nn.Module):
        def resample(self) -> None:
            raise AssertionError("without a seed it may do anything")

    plain = nn.Sequential(nn.Linear(3, 3), Unrelated(), Dangerous())
    assert with_fresh_state(plain) is plain
    wrapped = with_fresh_state(nn.Sequential(Layer()))
    assert isinstance(wrapped, Resampled)
    around = nn.Sequential(nn.ReLU(), wrapped)
    assert with_fresh_state(wrapped) is wrapped and with_fresh_state(around) is around
    assert isinstance(with_fresh_state(nn.Sequential(around, Layer())), Resampled)


def test_a_wrapped_network_keeps_its_mode() -> None:
    assert not Resampled(Layer().eval()).training
    with pytest.raises(TypeError, match="net must be"):
        Resampled(lambda x: x)
