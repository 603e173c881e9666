import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advbnn.evaluation.selective import aurc, risk_coverage, threshold


def test_risk_coverage_by_hand() -> None:
    coverage, risk = risk_coverage(torch.tensor([0.3, 0.1, 0.2, 0.4]), torch.tensor([False, True, True, False]))
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert risk.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert aurc(torch.tensor([0.3, 0.1, 0.2, 0.4]), torch.tensor([False, True, True, False])) == pytest.approx(5 / 24)


def test_the_equally_uncertain_count_by_their_mean_in_any_order() -> None:
    uncertainty = torch.tensor([0.5, 0.5, 0.5, 0.1])
    for correct in ([True, False, False, True], [False, False, True, True]):
        risk = risk_coverage(uncertainty, torch.tensor(correct))[1]
        assert risk.tolist() == pytest.approx([0, 1 / 3, 4 / 9, 1 / 2])


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_at_full_coverage_the_risk_is_the_error_rate(predictions: list[tuple[int, bool]]) -> None:
    uncertainty = torch.tensor([float(u) for u, _ in predictions])
    correct = torch.tensor([c for _, c in predictions])
    risk = risk_coverage(uncertainty, correct)[1]
    assert risk[-1].item() == pytest.approx((~correct).double().mean().item())
    assert 0 <= aurc(uncertainty, correct) <= 1


def test_knowing_ones_errors_is_best_and_the_reverse_is_worst() -> None:
    correct = torch.arange(50) < 40
    sure, unsure, blind = (~correct).double(), correct.double(), torch.zeros(50)
    assert aurc(blind, correct) == pytest.approx(0.2)
    assert aurc(sure, correct) < 0.05
    assert aurc(unsure, correct) > 0.5


@pytest.mark.parametrize(
    ("coverage", "expected"), [(1e-12, 1), (0.01, 1), (0.1, 1), (0.2, 2), (0.7, 7), (0.71, 8), (1.0, 10)]
)
def test_threshold_answers_just_enough(coverage: float, expected: float) -> None:
    uncertainty = torch.arange(10, 0, -1).double()
    assert threshold(uncertainty, coverage) == expected
    assert (uncertainty <= expected).double().mean() >= coverage


def test_refuses_bad_input() -> None:
    for coverage in (0, 1.5, -1, float("nan")):
        with pytest.raises(ValueError, match="coverage must be a share"):
            threshold(torch.ones(3), coverage)
    with pytest.raises(ValueError, match="one number a prediction"):
        threshold(torch.ones(0), 0.5)
    with pytest.raises(ValueError, match="correct, bool"):
        aurc(torch.ones(3), torch.ones(3))
    with pytest.raises(ValueError, match="n at least 1"):
        aurc(torch.ones(0), torch.ones(0).bool())
    uncertain = torch.tensor([0.1, float("nan"), 0.3])
    with pytest.raises(ValueError, match="uncertainty holds NaN"):
        threshold(uncertain, 0.9)
    with pytest.raises(ValueError, match="uncertainty holds NaN"):
        aurc(uncertain, torch.ones(3, dtype=torch.bool))
