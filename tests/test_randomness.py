"""Seeding a block: repeatable inside, invisible outside."""

import pytest
import torch

from advbnn.randomness import seeded


def test_repeats_inside_and_restores_outside() -> None:
    before = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(4)
    with seeded(3):
        assert torch.equal(torch.rand(4), first)
    assert torch.equal(torch.get_rng_state(), before)


def test_restores_when_the_block_raises() -> None:
    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt), seeded(3):
        torch.rand(1)
        raise KeyboardInterrupt
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_it_draws_from_the_callers_stream() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with seeded(None):
        assert torch.equal(torch.rand(2), expected)
