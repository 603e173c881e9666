import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from advbnn.intervals import accuracy_interval, clopper_pearson, mean_interval


@pytest.mark.parametrize(
    ("successes", "n"),
    [(0, 1), (1, 1), (0, 10), (3, 10), (10, 10), (454, 1000), (7, 500), (9_999, 10_000), (1, 50_000)],
)
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_equals_the_exact_interval_of_scipy(successes: int, n: int, confidence: float) -> None:
    expected = stats.binomtest(successes, n).proportion_ci(confidence, method="exact")
    assert clopper_pearson(successes, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-10)


cached = functools.cache(clopper_pearson)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 2, 5, 12, 30]), st.floats(0.001, 0.999), st.sampled_from([0.5, 0.95]))
def test_covers_every_probability_at_least_as_often_as_it_says(n: int, p: float, confidence: float) -> None:
    intervals = [cached(k, n, confidence) for k in range(n + 1)]
    covered = sum(stats.binom.pmf(k, n, p) for k, (low, high) in enumerate(intervals) if low <= p <= high)
    assert covered >= confidence - 1e-9


def test_the_ends_are_symmetric_and_contain_the_share() -> None:
    for k in range(21):
        low, high = clopper_pearson(k, 20)
        assert low <= k / 20 <= high
        assert (low, high) == pytest.approx(tuple(1 - end for end in reversed(clopper_pearson(20 - k, 20))))


def test_several_seeds_are_not_more_images() -> None:
    one = clopper_pearson(40, 100)
    assert accuracy_interval([40], 100) == one
    assert accuracy_interval([40, 40, 40], 100) == one
    pooled = clopper_pearson(120, 300)
    assert one[0] < pooled[0] < pooled[1] < one[1]


def test_a_mean_between_two_counts_takes_the_outer_ends() -> None:
    low, high = accuracy_interval([40, 41], 100)
    assert (low, high) == (clopper_pearson(40, 100)[0], clopper_pearson(41, 100)[1])
    assert accuracy_interval([0, 0, 10], 10)[0] <= 10 / 30 <= accuracy_interval([0, 0, 10], 10)[1]


def test_covers_the_accuracy_of_a_random_classifier_in_simulation() -> None:
    # each image has its own chance of being classified correctly, drawn anew for every test set; three seeds look at it
    generator = torch.Generator().manual_seed(0)
    n, trials, covered = 100, 400, 0
    by_mean = functools.cache(lambda total: accuracy_interval([total // 3, total // 3, total - 2 * (total // 3)], n))
    for _ in range(trials):
        chance = torch.rand(n, generator=generator).pow(2)
        correct = [int((torch.rand(n, generator=generator) < chance).sum()) for _ in range(3)]
        low, high = by_mean(sum(correct))
        covered += low <= 1 / 3 <= high
    assert covered / trials >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (-1, 5), (6, 5)])
def test_refuses_impossible_counts(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="0 <= successes <= n"):
        clopper_pearson(successes, n)


def test_refuses_an_impossible_confidence_and_no_seed() -> None:
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1, got 95"):
        clopper_pearson(1, 5, 95)
    with pytest.raises(ValueError, match="at least one seed"):
        accuracy_interval([], 5)


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    values = torch.randn(4000, 60, generator=torch.Generator().manual_seed(0)).square()  # the mean is 1
    ends = [mean_interval(row) for row in values]
    covered = sum(low <= 1 <= high for low, high in ends) / len(ends)
    assert 0.90 < covered < 0.96  # skewed values make it a little short
    low, high = mean_interval(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert (low, high) == pytest.approx((2.5 - 1.959964 * 1.290994 / 2, 2.5 + 1.959964 * 1.290994 / 2))
    wide = mean_interval(torch.tensor([1.0, 2.0, 3.0, 4.0]), confidence=0.99)
    assert wide[0] < low and wide[1] > high


def test_one_example_says_nothing_about_others() -> None:
    assert mean_interval(torch.tensor([3.0])) == (-math.inf, math.inf)
    with pytest.raises(ValueError, match=r"got shape \[0\]"):
        mean_interval(torch.zeros(0))
