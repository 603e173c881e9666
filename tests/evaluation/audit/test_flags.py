import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from advbnn.evaluation.audit import flags
from advbnn.evaluation.audit.flags import CHANCE, SMALLEST, below, more_than


def accuracy(right: int, n: int = 100) -> Tensor:
    return (torch.arange(n) < right).double()


def test_a_difference_counts_if_it_is_significant_and_large() -> None:
    assert below(accuracy(50), accuracy(60)) and not below(accuracy(60), accuracy(50))
    assert not below(accuracy(50), accuracy(59))  # nine equal coin flips: 1 in 512
    assert not below(accuracy(5000, 10_000), accuracy(5400, 10_000))  # significant, and small
    assert below(accuracy(5000, 10_000), accuracy(5500, 10_000))


@given(st.integers(0, 60), st.integers(0, 60))
def test_is_the_exact_sign_test(wins: int, losses: int) -> None:
    lower, upper = torch.zeros(120, dtype=torch.float64), torch.zeros(120, dtype=torch.float64)
    upper[:wins], lower[60 : 60 + losses] = 0.5, 0.5  # more seeds are no more images
    significant = wins + losses > 0 and stats.binomtest(wins, wins + losses, alternative="greater").pvalue <= CHANCE
    assert below(lower, upper) == (significant and 0.5 * (wins - losses) / 120 >= SMALLEST)


@pytest.mark.parametrize(
    ("count", "n", "counts"),
    [(5, 100, False), (13, 100, False), (20, 100, True), (7, 10, True), (700, 10_000, True), (0, 0, False)],
)
def test_a_share_counts_if_it_is_significant(count: int, n: int, counts: bool) -> None:
    assert more_than(0.05, torch.arange(n) < count) == counts


def test_a_decorated_function_is_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "FLAGS", {})

    @flags.flag("A title", "An advice.")
    def mine(found: object) -> flags.Decision:
        return flags.Decision(True, f"Seen in {found}.", {"number": 1.0})

    (one,) = flags.all_flags("findings")
    assert one == flags.Flag("mine", True, "Seen in findings.", {"number": 1.0})
    assert (one.title, flags.FLAGS["mine"].advice) == ("A title", "An advice.")
