"""How the learning rate and the weight of the divergence change over a run."""

import math
from dataclasses import dataclass
from typing import Protocol

from advbnn.errors import ArgumentError, unknown

KL_WARMUPS = ("constant", "linear", "blundell")


class Schedule(Protocol):
    """What a run asks of a learning-rate schedule."""

    @property
    def total_epochs(self) -> int:
        """The length of the run."""

    def scale(self, epoch: float) -> float:
        """The learning rate as a share of the optimizer's, after `epoch` epochs (fractions are steps within one)."""

    def restarts(self, epoch: int) -> bool:
        """Whether a new optimizer, without memory of past gradients, takes over at the start of this epoch."""


@dataclass(frozen=True, kw_only=True)
class _OneOptimizer:
    """A run whose optimizer is never replaced."""

    epochs: int = 100

    def __post_init__(self) -> None:
        _check_epochs(self.epochs)

    @property
    def total_epochs(self) -> int:
        return self.epochs

    def restarts(self, epoch: int) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Constant(_OneOptimizer):
    """One learning rate throughout."""

    def scale(self, epoch: float) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Stages of constant learning rate, each `factor` times the one before.

    Args:
        epochs: the length of each stage.
        factor: from one stage to the next.
        fresh_optimizer: begin each stage with a new optimizer, as the authors' code does.
    """

    epochs: tuple[int, ...] = (80, 60, 40, 20)
    factor: float = 0.1
    fresh_optimizer: bool = True

    def __post_init__(self) -> None:
        if not self.epochs:
            raise ArgumentError("epochs must hold the length of at least one stage, got ()")
        for length in self.epochs:
            _check_epochs(length)
        if not self.factor > 0:
            raise ArgumentError(f"factor must be positive, got {self.factor}")

    @property
    def total_epochs(self) -> int:
        return sum(self.epochs)

    def scale(self, epoch: float) -> float:
        return float(self.factor ** sum(epoch >= start for start in self._starts()[1:]))

    def restarts(self, epoch: int) -> bool:
        return self.fresh_optimizer and epoch in self._starts()[1:]

    def _starts(self) -> list[int]:
        return [sum(self.epochs[:stage]) for stage in range(len(self.epochs))]


@dataclass(frozen=True, kw_only=True)
class Cosine(_OneOptimizer):
    """Linear rise over `warmup` epochs, then half a cosine down to the share `final`."""

    warmup: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.warmup < self.epochs:
            raise ArgumentError(f"warmup must lie in [0, epochs), got {self.warmup} with epochs={self.epochs}")

    def scale(self, epoch: float) -> float:
        if epoch < self.warmup:
            return epoch / self.warmup
        return _half_cosine(1.0, self.final, (epoch - self.warmup) / (self.epochs - self.warmup))


@dataclass(frozen=True, kw_only=True)
class OneCycle(_OneOptimizer):
    """Half a cosine up from the share `start` to 1, and another down to `final` (Smith and Topin, 2018).

    Args:
        epochs: the length of the run.
        rise: the share of the run that goes up.
        start: where it starts.
        final: where it ends.
    """

    rise: float = 0.3
    start: float = 0.04
    final: float = 4e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rise < 1:
            raise ArgumentError(f"rise must lie strictly between 0 and 1, got {self.rise}")

    def scale(self, epoch: float) -> float:
        progress = epoch / self.epochs
        if progress < self.rise:
            return _half_cosine(self.start, 1.0, progress / self.rise)
        return _half_cosine(1.0, self.final, (progress - self.rise) / (1 - self.rise))


def kl_factor(warmup: str, *, epoch: int, step: int, steps: int, epochs: float = 1.0) -> float:
    """What alpha / N is multiplied with at a step, so that the divergence does not drown the data early on.

    Args:
        warmup: `"constant"`: 1. `"linear"`: from 0 up to 1 over `epochs` epochs. `"blundell"`: within every epoch
            M 2^(M-i) / (2^M - 1) for the i-th of M steps, whose mean is 1 (Blundell et al., 2015, section 3.4).
        epoch: the epoch, from 0.
        step: the step within it, from 0.
        steps: M, the steps of an epoch.
        epochs: the length of the linear rise.
    """
    if warmup == "constant":
        return 1.0
    if warmup == "linear":
        return min(1.0, (epoch + (step + 1) / steps) / epochs)
    if warmup == "blundell":
        # with numerator and denominator divided by 2^M, which no float could hold
        return steps * 2.0 ** -(step + 1) / (1 - 2.0**-steps)
    raise unknown("kl_warmup", warmup, KL_WARMUPS)


def _half_cosine(begin: float, end: float, progress: float) -> float:
    return end + (begin - end) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def _check_epochs(epochs: int) -> None:
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ArgumentError(f"epochs must be whole numbers of at least 1, got {epochs!r}")
