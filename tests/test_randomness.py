"""Seeding a block leaves the rest alone; every purpose has its own seed."""

import pytest
import torch

from advbnn.randomness import crafting_seed, derive_seed, scoring_seed, seeded


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
