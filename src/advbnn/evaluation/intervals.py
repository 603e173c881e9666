"""How far an accuracy, a difference of two, or a mean on n examples may lie from that on all of their kind."""

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor

from advbnn.errors import ArgumentError, ArgumentTypeError

CONFIDENCE = 0.95


@functools.cache
def clopper_pearson(successes: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval for a probability of which `n` independent trials showed `successes`.

    Its ends are the p for which so many successes or more, P(X >= k), and so few or fewer, P(X <= k), have
    probability (1 - confidence) / 2. It covers the true probability at least as often as it says, for every n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ArgumentError(f"expected 0 <= successes <= n with n at least 1, got successes={successes}, n={n}")
    if not 0 < confidence < 1:
        raise ArgumentError(f"confidence must lie between 0 and 1, got {confidence}; 0.95 is usual")
    tail = (1 - confidence) / 2
    lower = 0.0 if successes == 0 else _solve(n, range(successes, n + 1), tail, rising=True)
    upper = 1.0 if successes == n else _solve(n, range(successes + 1), tail, rising=False)
    return lower, upper


def accuracy_interval(correct: Sequence[int], n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The Clopper-Pearson interval of an accuracy that was measured on the same `n` images with several seeds.

    Only images count as trials. Seeds ask the same images again, so pooling them would claim more data than there
    are. Their mean varies less from one set of images to another than a single seed's accuracy does; so the interval
    of a single seed, placed at the mean, covers it. A mean between two counts takes the outer ends of both.

    Args:
        correct: the number of images classified correctly under each seed.
        n: the number of images.
    """
    if not correct:
        raise ArgumentError("correct must hold the count of at least one seed, got none")
    mean = math.fsum(correct) / len(correct)
    return clopper_pearson(math.floor(mean), n, confidence)[0], clopper_pearson(math.ceil(mean), n, confidence)[1]


def paired_interval(first: Tensor, second: Tensor, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of the difference of two accuracies on the same images.

    Only images that are right on one side alone make a difference: b in the first, c in the second. With
    p = (b + 1) / (n + 2) and q = (c + 1) / (n + 2) the interval is p - q -+ z sqrt((p + q - (p - q)^2) / (n + 2)). That
    is Wald's, with one image more on either side (Bonett and Price, 2012, J. Educ. Behav. Stat. 37:479).

    With several seeds an image counts towards b by the share of pairs of seeds in which it is right in the first and
    wrong in the second. A mean over seeds varies less than that, so that the interval covers it.

    Args:
        first: how often each image was right, a share in [0, 1], [n].
        second: the same for the other side, in the same order.
    """
    _check_shares("first", first)
    _check_shares("second", second)
    if first.shape != second.shape or first.ndim != 1 or len(first) == 0:
        raise ArgumentError(
            f"expected shares of the same images, got shapes {tuple(first.shape)}, {tuple(second.shape)}"
        )
    if not 0 < confidence < 1:
        raise ArgumentError(f"confidence must lie between 0 and 1, got {confidence}; 0.95 is usual")
    first, second, n = first.double(), second.double(), len(first)
    p, q = ((1 + (a * (1 - b)).sum().item()) / (n + 2) for a, b in ((first, second), (second, first)))
    half = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return max(-1.0, p - q - half), min(1.0, p - q + half)


def mean_interval(values: Tensor, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a mean, by the standard error of the `values` [n] of independent examples.

    It holds for so many examples that their mean is nearly normal: dozens if they are alike, more if few are large.
    A single example says nothing about the others, and its interval is the whole line.
    """
    if values.ndim != 1 or not len(values):
        raise ArgumentError(f"values must be one number for each example, [n], got shape {list(values.shape)}")
    if len(values) == 1:
        return -math.inf, math.inf
    std, mean = torch.std_mean(values.double())
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * float(std) / math.sqrt(len(values))
    return float(mean) - reach, float(mean) + reach


def _check_shares(argument: str, shares: Tensor) -> None:
    if not isinstance(shares, Tensor):
        raise ArgumentTypeError(
            f"{argument} must be a tensor of shares in [0, 1], such as Record.right, got {type(shares).__name__}; "
            "torch.as_tensor makes one of a list or an array"
        )
    outside = ~((shares >= 0) & (shares <= 1))  # as is NaN
    if bool(outside.any()):
        raise ArgumentError(
            f"{argument} must hold shares in [0, 1], one for each image, got {shares[outside][0].item():g}; "
            "leave out, on both sides, images that were not tried"
        )


def _solve(n: int, counts: range, tail: float, rising: bool) -> float:
    """The p at which the probability of `counts` among `n` trials, which rises or falls with p, equals `tail`."""
    k = torch.arange(counts.start, counts.stop, dtype=torch.float64)
    whole = torch.tensor(float(n), dtype=torch.float64)
    log_ways = torch.lgamma(whole + 1) - torch.lgamma(k + 1) - torch.lgamma(whole - k + 1)
    low, high = 0.0, 1.0
    while True:
        p = (low + high) / 2
        if p in (low, high):  # neighbours among the numbers: nothing lies between
            return p
        mass = torch.logsumexp(log_ways + k * math.log(p) + (n - k) * math.log1p(-p), 0).exp().item()
        if (mass < tail) == rising:
            low = p
        else:
            high = p
