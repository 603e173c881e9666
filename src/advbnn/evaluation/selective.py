"""Answering only when sure: which share to answer, and how wrong the answers then are."""

import math

import torch
from torch import Tensor

from advbnn.errors import ArgumentError


def risk_coverage(uncertainty: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """The error rate among the k most certain predictions, for k = 1, ..., n.

    Predictions that are equally uncertain come in no order of their own: each counts as wrong by the share of wrong
    ones among them.

    Args:
        uncertainty: one number a prediction, larger for those to leave out first, [n].
        correct: which predictions are right, bool, [n].

    Returns:
        the coverage k / n and the risk, [n] each, in float64.
    """
    _check(uncertainty, correct)
    values, group = uncertainty.unique(sorted=True, return_inverse=True)
    size = group.bincount(minlength=len(values))
    wrong = group.bincount((~correct).double(), minlength=len(values)) / size
    k = torch.arange(1, len(correct) + 1, dtype=torch.float64, device=correct.device)
    return k / len(correct), wrong.repeat_interleave(size).cumsum(0) / k


def aurc(uncertainty: Tensor, correct: Tensor) -> float:
    """The area under the risk-coverage curve: the mean risk over all coverages. Smaller is better."""
    return risk_coverage(uncertainty, correct)[1].mean().item()


def threshold(uncertainty: Tensor, coverage: float) -> float:
    """The largest uncertainty that is still answered, if at least a share `coverage` of these are to be.

    Args:
        uncertainty: of predictions for images of the kind that will be asked about, [n].
        coverage: in (0, 1]; 1 answers everything that is not more uncertain than the worst of these.
    """
    if not 0 < coverage <= 1:
        raise ArgumentError(f"coverage must be a share in (0, 1], got {coverage}; 0.9 answers nine of ten")
    if uncertainty.ndim != 1 or len(uncertainty) == 0:
        raise ArgumentError(f"uncertainty must be one number a prediction, [n], got shape {list(uncertainty.shape)}")
    _refuse_nan(uncertainty)
    # the product is a hair above the whole number that is meant, at times
    answered = max(1, math.ceil(coverage * len(uncertainty) - 1e-9))
    return uncertainty.sort().values[answered - 1].item()


def _check(uncertainty: Tensor, correct: Tensor) -> None:
    if correct.dtype != torch.bool or correct.ndim != 1 or correct.shape != uncertainty.shape or len(correct) == 0:
        raise ArgumentError(
            f"expected uncertainty [n] and correct, bool, [n], with n at least 1; got {list(uncertainty.shape)} and "
            f"{correct.dtype} {list(correct.shape)}"
        )
    _refuse_nan(uncertainty)


def _refuse_nan(uncertainty: Tensor) -> None:
    if bool(uncertainty.isnan().any()):
        raise ArgumentError(
            "uncertainty holds NaN, which is neither more nor less than others; look at the predictions"
        )
