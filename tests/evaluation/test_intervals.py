"""Intervals against SciPy and by hand, and their coverage."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from advbnn.evaluation.intervals import accuracy_interval, clopper_pearson, mean_interval, paired_interval


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (3, 10), (10, 10), (9_999, 10_000), (1, 50_000)])
@pytest.mark.parametrize("confidence", [0.9, 0.999])
def test_equals_the_exact_interval_of_scipy(successes: int, n: int, confidence: float) -> None:
    expected = stats.binomtest(successes, n).proportion_ci(confidence, method="exact")
    assert clopper_pearson(successes, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 2, 5, 12, 30]), st.floats(0.001, 0.999), st.sampled_from([0.5, 0.95]))
def test_covers_every_probability_at_least_as_often_as_it_says(n: int, p: float, confidence: float) -> None:
    intervals = [clopper_pearson(k, n, confidence) for k in range(n + 1)]
    covered = sum(stats.binom.pmf(k, n, p) for k, (low, high) in enumerate(intervals) if low <= p <= high)
    assert covered >= confidence - 1e-9


def test_several_seeds_are_not_more_images() -> None:
    one, pooled = clopper_pearson(40, 100), clopper_pearson(120, 300)
    assert accuracy_interval([40], 100) == accuracy_interval([40, 40, 40], 100) == one
    assert one[0] < pooled[0] < pooled[1] < one[1]
    # a mean between two counts takes the outer ends
    assert accuracy_interval([40, 41], 100) == (one[0], clopper_pearson(41, 100)[1])


def test_covers_the_accuracy_of_a_random_classifier_in_simulation() -> None:
    # every image has its own probability of being classified correctly
    generator = torch.Generator().manual_seed(0)
    n, trials, covered = 100, 300, 0
    by_mean = functools.cache(lambda total: accuracy_interval([total // 3, total // 3, total - 2 * (total // 3)], n))
    for _ in range(trials):
        chance = torch.rand(n, generator=generator).pow(2)
        correct = [int((torch.rand(n, generator=generator) < chance).sum()) for _ in range(3)]
        low, high = by_mean(sum(correct))
        covered += low <= 1 / 3 <= high
    assert covered / trials >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / trials)


def sides(both: int, first: int, second: int, neither: int) -> tuple[Tensor, Tensor]:
    """Which images are right on either side, given how many are right on which."""
    counts = torch.tensor([both, first, second, neither])
    right = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]).repeat_interleave(counts, 0)
    return right[:, 0], right[:, 1]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        # p - q and the root by hand: -6/23 and sqrt(10/23 - 36/529), -10/163 and sqrt(24/163 - 100/163^2), over n + 2
        ((1, 1, 7, 12), (-6 / 23, math.sqrt((10 / 23 - 36 / 529) / 23))),
        ((59, 6, 16, 80), (-10 / 163, math.sqrt((24 / 163 - 100 / 163**2) / 163))),
        ((500, 0, 0, 500), (0, math.sqrt(2) / 1002)),  # no image differs: some others of the kind may
        ((0, 10, 0, 0), (10 / 12, math.sqrt(1 - (10 / 12) ** 2) / math.sqrt(12))),
    ],
)
def test_the_paired_interval_by_hand(table: tuple[int, int, int, int], expected: tuple[float, float]) -> None:
    middle, error = expected
    ends = (middle - 1.959964 * error, min(1.0, middle + 1.959964 * error))
    assert paired_interval(*sides(*table)) == pytest.approx(ends, abs=1e-6)
    first, second = sides(*table)
    assert paired_interval(second, first) == pytest.approx((-ends[1], -ends[0]), abs=1e-6)


def test_only_images_that_differ_count_in_a_paired_interval() -> None:
    assert paired_interval(*sides(90, 5, 2, 3)) == paired_interval(*sides(3, 5, 2, 90))
    low, high = paired_interval(*sides(600, 20, 10, 370))
    alone = clopper_pearson(620, 1000)
    assert high - low < (alone[1] - alone[0]) / 2


@pytest.mark.parametrize("n", [10, 40])
def test_the_paired_interval_covers_the_difference_as_often_as_it_says(n: int) -> None:
    tables = [(b, c) for b in range(n + 1) for c in range(n + 1 - b)]
    ends = [paired_interval(*sides(0, b, c, n - b - c)) for b, c in tables]
    covered = []
    for p, q in ((0.01, 0.01), (0.05, 0.01), (0.1, 0.1), (0.2, 0.05), (0.3, 0.3), (0.6, 0.1)):
        mass = stats.multinomial.pmf([(b, c, n - b - c) for b, c in tables], n, (p, q, 1 - p - q))
        covered.append(sum(m for m, (low, high) in zip(mass, ends, strict=True) if low <= p - q <= high))
    assert min(covered) > 0.94
    assert sum(covered) / len(covered) > 0.95


def test_several_seeds_are_covered_by_the_paired_interval_in_simulation() -> None:
    # an attack that lowers the probability of every image; two seeds for the first accuracy, three for the second
    generator = torch.Generator().manual_seed(0)
    n, trials, covered = 100, 400, 0
    for _ in range(trials):
        chance = torch.rand(n, generator=generator)
        first, second = (
            (torch.rand(seeds, n, generator=generator) < share * chance).double().mean(0)
            for seeds, share in ((2, 1.0), (3, 0.8))
        )
        low, high = paired_interval(first, second)
        assert low < (first.mean() - second.mean()).item() < high
        covered += low <= 0.1 <= high
    assert covered / trials >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / trials)


def test_refuses_bad_input() -> None:
    for call, message in (
        (lambda: clopper_pearson(6, 5), "successes=6"),
        (lambda: clopper_pearson(1, 5, 95), "confidence .*95"),
        (lambda: accuracy_interval([], 5), "correct .*at least one seed"),
        (lambda: paired_interval(torch.ones(3), torch.ones(4)), r"same images.*\(3,\), \(4,\)"),
        (lambda: mean_interval(torch.zeros(0)), "values .*0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_the_interval_of_a_mean() -> None:
    low, high = mean_interval(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert (low, high) == pytest.approx((2.5 - 1.959964 * 1.290994 / 2, 2.5 + 1.959964 * 1.290994 / 2))
    assert mean_interval(torch.tensor([3.0])) == (-math.inf, math.inf)
    values = torch.randn(2000, 60, generator=torch.Generator().manual_seed(0)).square()  # the mean is 1
    covered = sum(low <= 1 <= high for low, high in map(mean_interval, values)) / len(values)
    # skewed values lower the coverage a little; the standard error of this estimate is 0.005
    assert 0.89 < covered < 0.97
