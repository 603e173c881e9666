import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from advbnn.evaluation.audit.flags import CHANCE, SMALLEST, TITLES, Flag, below, more_than, percent


def accuracy(right: int, n: int = 100) -> Tensor:
    return (torch.arange(n) < right).double()


def test_a_difference_counts_if_it_is_sure_and_large() -> None:
    assert below(accuracy(50), accuracy(60))
    assert not below(accuracy(60), accuracy(50))
    assert not below(accuracy(50), accuracy(59))  # nine coins that fall alike: 1 in 512
    assert not below(accuracy(5000, 10_000), accuracy(5400, 10_000))  # sure, and small
    assert below(accuracy(5000, 10_000), accuracy(5500, 10_000))
    assert not below(accuracy(50), accuracy(50))


def test_images_that_differ_to_and_fro_are_noise() -> None:
    lower, upper = accuracy(50, 200), accuracy(50, 200)
    upper[50:90], lower[90:120] = 1, 1  # 40 images are better here, 30 there
    assert not below(lower, upper)


def test_seeds_do_not_multiply_images() -> None:
    # five images that fall under every one of many seeds are five images
    lower, upper = torch.zeros(20, dtype=torch.float64), torch.zeros(20, dtype=torch.float64)
    upper[:9] = 1
    assert not below(lower, upper)
    upper[:10] = 0.5
    assert below(lower, upper)


@given(st.integers(0, 60), st.integers(0, 60))
def test_is_the_exact_sign_test(wins: int, losses: int) -> None:
    lower, upper = torch.zeros(120, dtype=torch.float64), torch.zeros(120, dtype=torch.float64)
    upper[:wins], lower[60 : 60 + losses] = 1, 1
    sure = wins + losses > 0 and stats.binomtest(wins, wins + losses, alternative="greater").pvalue <= CHANCE
    assert below(lower, upper) == (sure and (wins - losses) / 120 >= SMALLEST)


def test_chance_alone_hardly_ever_counts() -> None:
    draws = torch.rand(2, 2000, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64) < 0.5
    false_alarms = sum(below(a.double(), b.double()) for a, b in zip(*draws, strict=True))
    assert false_alarms <= 2000 * CHANCE + 3 * math.sqrt(2000 * CHANCE)


def test_a_share_counts_if_it_is_sure() -> None:
    def some(count: int, n: int = 100) -> bool:
        return more_than(0.05, torch.arange(n) < count)

    assert not some(5)
    assert not some(13)
    assert some(20)
    assert some(7, 10)
    assert some(700, 10_000)


def test_every_flag_has_a_title() -> None:
    assert Flag("noise", True, "It is so.", {}).title == TITLES["noise"]
    assert percent(accuracy(12)) == "12.0 %"


@pytest.mark.parametrize("title", TITLES.values())
def test_titles_are_short_and_end_without_a_stop(title: str) -> None:
    assert len(title) < 60
    assert not title.endswith(".")
