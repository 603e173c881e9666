"""Confidence intervals of an accuracy, of a difference of two accuracies, and of a mean."""

import functools
import math
import statistics
from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor

from advbnn.errors import ArgumentError, within

CONFIDENCE = 0.95


@functools.cache
def clopper_pearson(successes: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact (Clopper-Pearson) interval of a probability after k = `successes` in `n` independent trials.

    Its ends are the p at which P(X >= k) and P(X <= k) equal (1 - confidence) / 2. Its coverage is at least
    `confidence` for every n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ArgumentError(f"expected 0 <= successes <= n with n at least 1, got successes={successes}, n={n}")
    within("confidence", confidence, "(0, 1)", "0.95 is usual")
    tail = (1 - confidence) / 2
    lower = 0.0 if successes == 0 else _solve(n, range(successes, n + 1), tail, rising=True)
    upper = 1.0 if successes == n else _solve(n, range(successes + 1), tail, rising=False)
    return lower, upper


def accuracy_interval(correct: Sequence[int], n: int, draws: float = 0.0) -> tuple[float, float]:
    """The 95 % interval of an accuracy measured on the same `n` images with several ensembles.

    Only images count as trials: pooling ensembles would count the same images several times. The share a_i of ensembles
    that classify image i correctly lies in [0, 1] and has mean p, so its variance over images is at most p (1 - p),
    that of one trial. With the variance of the mean due to the `draws` of ensembles (see `draws_variance`), the mean
    varies at most like the share of successes in

        m = p (1 - p) / (p (1 - p) / n + draws)

    trials, the effective sample size. The interval is that of Clopper and Pearson for m trials (as that of Korn and
    Graubard, 1998, Surv. Methodol. 24:193). Non-integers are rounded to the outer ends. `correct` holds the number of
    images that each ensemble classifies correctly.
    """
    if not correct:
        raise ArgumentError("correct must hold the count of at least one seed, got none")
    p = math.fsum(correct) / len(correct) / n
    m = max(1, math.floor(n / (1 + n * draws / (p * (1 - p))))) if draws else n
    k = round(p * m, 9)  # a whole number may be off by rounding
    return clopper_pearson(math.floor(k), m)[0], clopper_pearson(math.ceil(k), m)[1]


def draws_variance(correct: Sequence[Sequence[int]], n: int) -> float:
    """The variance of an accuracy due to its finite number of ensembles, from the counts of each seed's ensembles.

    The s^2 / R of R independent ensembles, averaged over seeds like their mean; 0 where a seed has a single one, which
    says nothing of its variance.
    """
    if not correct or len(correct[0]) < 2:
        return 0.0
    return math.fsum(statistics.variance(counts) / len(counts) for counts in correct) / (len(correct) * n) ** 2


def paired_interval(first: Tensor, second: Tensor) -> tuple[float, float]:
    """The 95 % interval of the difference of two accuracies on the same images.

    Only discordant images count: b are right in the first only, c in the second only. With p = (b + 1) / (n + 2) and
    q = (c + 1) / (n + 2) the interval is p - q -+ z sqrt((p + q - (p - q)^2) / (n + 2)): the adjusted Wald interval
    (Bonett and Price, 2012, J. Educ. Behav. Stat. 37:479).

    Both arguments are the fractions of seeds for which each image was right, [n]. With several seeds, an image adds to
    b the fraction of pairs of seeds in which it is right in the first and wrong in the second. The mean over seeds
    varies less, so the interval is conservative.
    """
    if first.shape != second.shape or first.ndim != 1 or len(first) == 0:
        shapes = f"{tuple(first.shape)}, {tuple(second.shape)}"
        raise ArgumentError(f"first and second must be of the same images, got shapes {shapes}")
    first, second, n = first.double(), second.double(), len(first)
    p, q = ((1 + (a * (1 - b)).sum().item()) / (n + 2) for a, b in ((first, second), (second, first)))
    half = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return max(-1.0, p - q - half), min(1.0, p - q + half)


def mean_interval(values: Tensor) -> tuple[float, float]:
    """The normal 95 % interval of a mean, from the standard error of `values` [n] of independent examples.

    It needs enough examples for the mean to be nearly normal. The interval of a single example is the whole line.
    """
    if values.ndim != 1 or not len(values):
        raise ArgumentError(f"values must be one number per example, [n], got shape {list(values.shape)}")
    if len(values) == 1:
        return -math.inf, math.inf
    std, mean = torch.std_mean(values.double())
    reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * float(std) / math.sqrt(len(values))
    return float(mean) - reach, float(mean) + reach


def _solve(n: int, counts: range, tail: float, rising: bool) -> float:
    """The p at which the probability of `counts` in `n` trials, monotone in p, equals `tail`; by bisection."""
    k = torch.arange(counts.start, counts.stop, dtype=torch.float64)
    whole = torch.tensor(float(n), dtype=torch.float64)
    log_ways = torch.lgamma(whole + 1) - torch.lgamma(k + 1) - torch.lgamma(whole - k + 1)
    low, high = 0.0, 1.0
    while True:
        p = (low + high) / 2
        if p in (low, high):  # adjacent floating-point numbers
            return p
        mass = torch.logsumexp(log_ways + k * math.log(p) + (n - k) * math.log1p(-p), 0).exp().item()
        if (mass < tail) == rising:
            low = p
        else:
            high = p
