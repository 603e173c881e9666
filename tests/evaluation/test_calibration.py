import math

import pytest
import torch

from advbnn.bayes.prediction import predict
from advbnn.evaluation.calibration import brier_score, expected_calibration_error, negative_log_likelihood, reliability

PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5], [0.9, 0.05, 0.05]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 1, 2])


def test_negative_log_likelihood_by_hand() -> None:
    expected = -(math.log(0.7) + math.log(0.6) + math.log(0.3) + math.log(0.05)) / 4
    assert negative_log_likelihood(PROBS, LABELS) == pytest.approx(expected)


def test_an_impossible_label_costs_the_most_that_the_type_can_say() -> None:
    certain = torch.tensor([[1.0, 0.0]])
    assert negative_log_likelihood(certain, torch.tensor([0])) == 0
    assert negative_log_likelihood(certain, torch.tensor([1])) == pytest.approx(-math.log(torch.finfo().tiny))


def test_brier_score_by_hand_and_at_its_ends() -> None:
    rows = [0.09 + 0.04 + 0.01, 0.01 + 0.16 + 0.09, 0.04 + 0.49 + 0.25, 0.81 + 0.0025 + 0.9025]
    assert brier_score(PROBS, LABELS) == pytest.approx(sum(rows) / 4)
    certain = torch.eye(3)
    assert brier_score(certain, torch.tensor([0, 1, 2])) == 0
    assert brier_score(certain, torch.tensor([1, 2, 0])) == 2


def test_reliability_by_hand() -> None:
    bars = reliability(PROBS, LABELS, bins=2)
    assert bars.edges == [0, 0.5, 1]
    # the confidence 0.5 belongs to the lower bin, whose upper end it is
    assert bars.count == [1, 3]
    assert bars.confidence == [pytest.approx(0.5), pytest.approx(2.2 / 3)]
    assert bars.accuracy == [0, pytest.approx(2 / 3)]
    assert reliability(PROBS, LABELS, bins=10).confidence[0] is None


def test_expected_calibration_error_by_hand() -> None:
    expected = 1 / 4 * abs(0.5 - 0) + 3 / 4 * abs(2.2 / 3 - 2 / 3)
    assert expected_calibration_error(PROBS, LABELS, bins=2) == pytest.approx(expected)


def test_a_probability_that_rounding_put_above_one_changes_nothing() -> None:
    """The mean over seven draws of a certain network is such a one: exp(logsumexp(0, ..., 0) - log 7)."""
    net = torch.nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[20.0, 0.0], [0.0, 20.0]]))
    x = torch.rand(200, 2, generator=torch.Generator().manual_seed(0)).mul_(4)
    probs, labels = predict(net, x, samples=7).probs, torch.zeros(200, dtype=torch.int64)
    assert probs.max() > 1
    error = expected_calibration_error(probs.clamp_max(1), labels)
    assert expected_calibration_error(probs, labels) == pytest.approx(error, abs=1e-6)


@pytest.mark.parametrize("bins", [1, 2, 7, 15, 20])
def test_expected_calibration_error_is_that_of_torchmetrics(bins: int) -> None:
    classification = pytest.importorskip("torchmetrics.functional.classification")
    generator = torch.Generator().manual_seed(bins)
    probs = torch.randn(50, 4, generator=generator).mul(2).softmax(1)
    labels = torch.randint(4, (50,), generator=generator)
    expected = classification.multiclass_calibration_error(probs, labels, num_classes=4, n_bins=bins, norm="l1")
    assert expected_calibration_error(probs, labels, bins) == pytest.approx(float(expected), abs=1e-6)


def test_a_calibrated_forecast_has_no_error_and_the_best_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(20_000, 1, generator=generator)
    probs = torch.cat([probs, 1 - probs], 1)
    labels = (torch.rand(20_000, generator=generator) > probs[:, 0]).long()
    assert expected_calibration_error(probs, labels) < 0.015
    sharper = probs.square() / probs.square().sum(1, keepdim=True)
    for score in (negative_log_likelihood, brier_score, expected_calibration_error):
        assert score(sharper, labels) > score(probs, labels)


def test_refuses_what_does_not_fit() -> None:
    for function in (negative_log_likelihood, brier_score, expected_calibration_error, reliability):
        with pytest.raises(ValueError, match=r"expected probs \[n, classes\] and labels \[n\]"):
            function(PROBS, LABELS[:2])
        with pytest.raises(ValueError, match="n at least 1"):
            function(PROBS[:0], LABELS[:0])
        for logits in (PROBS.log(), PROBS * 2, PROBS * math.nan):
            with pytest.raises(ValueError, match=r"probs must be probabilities.*softmax"):
                function(logits, LABELS)
        for labels in (LABELS + 1, LABELS - 1, LABELS.int()):
            with pytest.raises(ValueError, match="labels must be int64 class numbers, 0 to 2"):
                function(PROBS, labels)
    for binned in (expected_calibration_error, reliability):
        with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
            binned(PROBS, LABELS, bins=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_takes_probabilities_in_half_precision(dtype: torch.dtype) -> None:
    probs = torch.randn(300, 143, generator=torch.Generator().manual_seed(0)).to(dtype).softmax(1)
    labels = probs.argmax(1)
    exact = negative_log_likelihood(probs.double() / probs.double().sum(1, keepdim=True), labels)
    assert negative_log_likelihood(probs, labels) == pytest.approx(exact, rel=0.02)
