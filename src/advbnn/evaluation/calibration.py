"""Whether probabilities mean what they say."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from advbnn.errors import ArgumentError

BINS = 15

_ROUNDING = 0.01
"""How far from 1 the sum of a row may be; bfloat16 has three digits."""


def negative_log_likelihood(probs: Tensor, labels: Tensor) -> float:
    """Mean of -log p(y), in nats. A probability too small for its type counts as the smallest that it can hold."""
    own = _of_labels(probs, labels)
    return -own.clamp_min(torch.finfo(probs.dtype).tiny).log().mean().item()


def brier_score(probs: Tensor, labels: Tensor) -> float:
    """Mean of sum_c (p(c) - 1[c = y])^2, from 0, certain and right, to 2, certain and wrong."""
    _of_labels(probs, labels)
    return (probs - functional.one_hot(labels, probs.shape[1])).square().sum(1).mean().item()


def expected_calibration_error(probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Mean distance between confidence and accuracy over bins of equal width, weighed by their size (l1 ECE).

    It is what the bars of `reliability` show. It depends on the number of bins, and is biased upwards for few images:
    compare only equal settings.
    """
    # of our own: torchmetrics takes everything for logits if rounding has put a single probability above 1
    bars = reliability(probs, labels, bins)
    filled = zip(bars.count, bars.confidence, bars.accuracy, strict=True)
    gaps = (size * abs(sure - right) for size, sure, right in filled if sure is not None and right is not None)
    return sum(gaps) / len(labels)


@dataclass(frozen=True)
class Reliability:
    """The bars of a reliability diagram, one entry a bin of confidence, from low to high.

    Attributes:
        edges: the ends of the bins, one more than there are bins.
        count: predictions in each bin.
        confidence: their mean confidence, None in an empty bin.
        accuracy: the share of them that are right, None in an empty bin.
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
    # each bin has its upper end; what rounding puts above 1 belongs to the last
    index = torch.bucketize(confidence, edges[1:-1])
    count = index.bincount(minlength=bins)

    def means(values: Tensor) -> list[float | None]:
        sums = index.bincount(values, minlength=bins).tolist()
        return [total / size if size else None for total, size in zip(sums, count.tolist(), strict=True)]

    return Reliability(edges.tolist(), count.tolist(), means(confidence), means(right))


def _of_labels(probs: Tensor, labels: Tensor) -> Tensor:
    """The probability of each label, after a check that both fit each other."""
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or len(labels) == 0:
        raise ArgumentError(
            f"expected probs [n, classes] and labels [n] with n at least 1, got {list(probs.shape)} and "
            f"{list(labels.shape)}"
        )
    if bool((probs < 0).any()) or not bool(((probs.sum(1) - 1).abs() <= _ROUNDING).all()):
        raise ArgumentError(
            "probs must be probabilities, rows that are not negative and sum to 1; of logits, softmax(1)"
        )
    if labels.dtype != torch.int64 or not bool(((labels >= 0) & (labels < probs.shape[1])).all()):
        raise ArgumentError(
            f"labels must be int64 class numbers, 0 to {probs.shape[1] - 1}, as probs has so many columns"
        )
    return probs.gather(1, labels[:, None]).squeeze(1)
