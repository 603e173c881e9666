"""Metrics of probabilities and of uncertainty scores: calibration, selective prediction, detection."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from advbnn.errors import ArgumentError

BINS = 15

_ROUNDING = 0.01
"""How far from 1 the sum of a row may be; bfloat16 has three digits."""


def negative_log_likelihood(probs: Tensor, labels: Tensor) -> float:
    """Mean of -log p(y), in nats; p(y) is at least the smallest normal number of its dtype."""
    return -_of_labels(probs, labels).clamp_min(torch.finfo(probs.dtype).tiny).log().mean().item()


def brier_score(probs: Tensor, labels: Tensor) -> float:
    """Mean of sum_c (p(c) - 1[c = y])^2, from 0 (certain and right) to 2 (certain and wrong)."""
    _of_labels(probs, labels)
    return (probs - functional.one_hot(labels, probs.shape[1])).square().sum(1).mean().item()


def expected_calibration_error(probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Mean |confidence - accuracy| over bins of equal width, weighted by their size (l1 ECE).

    It depends on the number of bins and is biased upwards for few images: compare equal settings only.
    """
    # not torchmetrics: it takes all values for logits if rounding puts a single probability above 1
    bars = reliability(probs, labels, bins)
    filled = zip(bars.count, bars.confidence, bars.accuracy, strict=True)
    gaps = (size * abs(sure - right) for size, sure, right in filled if sure is not None and right is not None)
    return sum(gaps) / len(labels)


@dataclass(frozen=True)
class Reliability:
    """The bars of a reliability diagram, from low to high: the ends of the bins, and per bin the number of predictions,
    their mean confidence and their accuracy, None in an empty bin.
    """

    edges: list[float]
    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


def reliability(probs: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """Confidence (the largest probability) against accuracy, in `bins` bins of equal width."""
    _of_labels(probs, labels)
    if bins < 1:
        raise ArgumentError(f"bins must be at least 1, got {bins}; 15 is usual")
    confidence, predicted = probs.double().max(1)
    right = (predicted == labels).double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=probs.device)
    # each bin includes its upper end; values that rounding puts above 1 belong to the last
    index = torch.bucketize(confidence, edges[1:-1])
    count = index.bincount(minlength=bins)

    def means(values: Tensor) -> list[float | None]:
        sums = index.bincount(values, minlength=bins).tolist()
        return [total / size if size else None for total, size in zip(sums, count.tolist(), strict=True)]

    return Reliability(edges.tolist(), count.tolist(), means(confidence), means(right))


def risk_coverage(uncertainty: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """The coverage k / n, and the error rate among the k most certain predictions, for k = 1, ..., n, in float64.

    Ties share their mean error. Predictions with larger uncertainty are rejected first.
    """
    if correct.dtype != torch.bool or correct.ndim != 1 or correct.shape != uncertainty.shape or len(correct) == 0:
        came = f"{list(uncertainty.shape)} and {correct.dtype} {list(correct.shape)}"
        raise ArgumentError(f"expected uncertainty [n] and correct, bool, [n], n at least 1; got {came}")
    if bool(uncertainty.isnan().any()):
        raise ArgumentError("uncertainty holds NaN; check the predictions")
    values, group = uncertainty.unique(sorted=True, return_inverse=True)
    size = group.bincount(minlength=len(values))
    wrong = group.bincount((~correct).double(), minlength=len(values)) / size
    k = torch.arange(1, len(correct) + 1, dtype=torch.float64, device=correct.device)
    return k / len(correct), wrong.repeat_interleave(size).cumsum(0) / k


def aurc(uncertainty: Tensor, correct: Tensor) -> float:
    """The area under the risk-coverage curve: the mean risk over all coverages. Smaller is better."""
    return risk_coverage(uncertainty, correct)[1].mean().item()


def auroc(negative: Tensor, positive: Tensor) -> float:
    """The probability that a positive scores above a negative, ties counting half.

    1 is a perfect detector, 0.5 a useless one, and less than 0.5 one that was evaded.
    """
    for name, scores in (("negative", negative), ("positive", positive)):
        if scores.ndim != 1 or len(scores) == 0 or not bool(scores.isfinite().all()):
            raise ArgumentError(f"{name} must be finite scores, [n] with n at least 1, got shape {list(scores.shape)}")
    values, group = torch.cat([negative, positive]).unique(sorted=True, return_inverse=True)
    parts = group.split([len(negative), len(positive)])
    negatives, positives = (part.bincount(minlength=len(values)).double() for part in parts)
    ordered = (positives * (negatives.cumsum(0) - negatives / 2)).sum().item()
    return float(ordered) / (len(negative) * len(positive))


def _of_labels(probs: Tensor, labels: Tensor) -> Tensor:
    """The probability of each label, after checking both arguments."""
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or len(labels) == 0:
        shapes = f"{list(probs.shape)} and {list(labels.shape)}"
        raise ArgumentError(f"expected probs [n, classes] and labels [n], n at least 1, got {shapes}")
    if bool((probs < 0).any()) or not bool(((probs.sum(1) - 1).abs() <= _ROUNDING).all()):
        raise ArgumentError("probs must be non-negative rows that sum to 1; for logits use softmax(1)")
    if labels.dtype != torch.int64 or not bool(((labels >= 0) & (labels < probs.shape[1])).all()):
        raise ArgumentError(f"labels must be int64 class numbers, 0 to {probs.shape[1] - 1}, the columns of probs")
    return probs.gather(1, labels[:, None]).squeeze(1)
