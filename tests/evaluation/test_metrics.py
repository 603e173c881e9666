"""Metrics by hand, at their limits, and against torchmetrics and SciPy."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from advbnn.evaluation.metrics import (
    aurc,
    auroc,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
    risk_coverage,
)

PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5], [0.9, 0.05, 0.05]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 1, 2])
CERTAIN = torch.eye(3)


def test_scores_by_hand_and_at_their_limits() -> None:
    nll = -(math.log(0.7) + math.log(0.6) + math.log(0.3) + math.log(0.05)) / 4
    assert negative_log_likelihood(PROBS, LABELS) == pytest.approx(nll)
    brier = [0.09 + 0.04 + 0.01, 0.01 + 0.16 + 0.09, 0.04 + 0.49 + 0.25, 0.81 + 0.0025 + 0.9025]
    assert brier_score(PROBS, LABELS) == pytest.approx(sum(brier) / 4)
    right, wrong = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
    assert (negative_log_likelihood(CERTAIN, right), brier_score(CERTAIN, right)) == (0, 0)
    assert negative_log_likelihood(CERTAIN, wrong) == pytest.approx(-math.log(torch.finfo().tiny))
    assert brier_score(CERTAIN, wrong) == 2


def test_reliability_and_ece_by_hand() -> None:
    bars = reliability(PROBS, LABELS, bins=2)
    # a confidence of 0.5 belongs to the lower bin, whose upper end it is
    assert (bars.edges, bars.count) == ([0, 0.5, 1], [1, 3])
    assert bars.confidence == [pytest.approx(0.5), pytest.approx(2.2 / 3)]
    assert bars.accuracy == [0, pytest.approx(2 / 3)]
    assert reliability(PROBS, LABELS, bins=10).confidence[0] is None
    ece = 1 / 4 * abs(0.5 - 0) + 3 / 4 * abs(2.2 / 3 - 2 / 3)
    assert expected_calibration_error(PROBS, LABELS, bins=2) == pytest.approx(ece)


@pytest.mark.parametrize("bins", [1, 7, 20])
def test_ece_is_that_of_torchmetrics(bins: int) -> None:
    classification = pytest.importorskip("torchmetrics.functional.classification")
    generator = torch.Generator().manual_seed(bins)
    probs = torch.randn(50, 4, generator=generator).mul(2).softmax(1)
    labels = torch.randint(4, (50,), generator=generator)
    expected = classification.multiclass_calibration_error(probs, labels, num_classes=4, n_bins=bins, norm="l1")
    assert expected_calibration_error(probs, labels, bins) == pytest.approx(float(expected), abs=1e-6)


def test_a_probability_that_rounding_puts_above_one_changes_nothing() -> None:
    probs, labels = torch.rand(200, 1, generator=torch.Generator().manual_seed(0)), torch.zeros(200, dtype=torch.int64)
    probs = torch.cat([probs, 1 - probs], 1)
    probs[0] = torch.tensor([1 + 1e-6, 0.0])
    error = expected_calibration_error(probs.clamp_max(1), labels)
    assert expected_calibration_error(probs, labels) == pytest.approx(error, abs=1e-6)


def test_probabilities_and_labels_are_checked() -> None:
    for probs, labels, message in (
        (PROBS, LABELS[:2], "probs .*labels"),
        (PROBS[:0], LABELS[:0], "n at least 1"),
        (PROBS.log(), LABELS, "probs .*softmax"),
        (PROBS, LABELS + 1, "labels .*0 to 2"),
        (PROBS, LABELS.int(), "labels .*int64"),
    ):
        for function in (negative_log_likelihood, brier_score, expected_calibration_error):
            with pytest.raises(ValueError, match=message):
                function(probs, labels)


def test_risk_coverage_by_hand() -> None:
    uncertainty, correct = torch.tensor([0.3, 0.1, 0.2, 0.4]), torch.tensor([False, True, True, False])
    coverage, risk = risk_coverage(uncertainty, correct)
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert risk.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert aurc(uncertainty, correct) == pytest.approx(5 / 24)
    for tied in ([True, False, False, True], [False, False, True, True]):
        risk = risk_coverage(torch.tensor([0.5, 0.5, 0.5, 0.1]), torch.tensor(tied))[1]
        assert risk.tolist() == pytest.approx([0, 1 / 3, 4 / 9, 1 / 2])


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_at_full_coverage_the_risk_is_the_error_rate(predictions: list[tuple[int, bool]]) -> None:
    uncertainty = torch.tensor([float(u) for u, _ in predictions])
    correct = torch.tensor([c for _, c in predictions])
    assert risk_coverage(uncertainty, correct)[1][-1].item() == pytest.approx((~correct).double().mean().item())
    # no ranking is better than one that knows the errors, and none worse than its reverse
    assert aurc((~correct).double(), correct) <= aurc(uncertainty, correct) + 1e-12
    assert aurc(uncertainty, correct) <= aurc(correct.double(), correct) + 1e-12


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    st.sampled_from([1e-9, 1.0, 1e9]),
)
def test_auroc_is_the_statistic_of_mann_and_whitney(low: list[int], high: list[int], scale: float) -> None:
    negative, positive = (torch.tensor(values, dtype=torch.float64) * scale for values in (low, high))
    statistic = stats.mannwhitneyu(high, low).statistic if len(set(low + high)) > 1 else len(low) * len(high) / 2
    assert auroc(negative, positive) == pytest.approx(statistic / (len(low) * len(high)))


def test_scores_are_checked() -> None:
    uncertain = torch.tensor([0.1, float("nan"), 0.3])
    with pytest.raises(ValueError, match="uncertainty .*NaN"):
        aurc(uncertain, torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="correct, bool"):
        aurc(torch.ones(3), torch.ones(3))
    with pytest.raises(ValueError, match="positive .*finite"):
        auroc(torch.ones(2), uncertain)
