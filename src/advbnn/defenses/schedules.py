"""Schedules of the learning rate and of the weight of the KL.

A learning-rate schedule has `total_epochs`; `scale(epoch)`, the factor of the optimizer's learning rate after that many
epochs, which may be a fraction; `restarts(epoch)`, whether that epoch begins with a new optimizer; and `first_epoch`,
where training begins.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from advbnn.errors import ArgumentError, check_types, positive_whole, shown, unknown, within

KL_WARMUPS = ("constant", "linear", "blundell")


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A constant learning rate; the base of the schedules that keep one optimizer."""

    epochs: int = 100
    first_epoch: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_types(self)
        positive_whole("epochs", self.epochs)

    @property
    def total_epochs(self) -> int:
        return self.epochs

    def scale(self, epoch: float) -> float:
        return 1.0

    def restarts(self, epoch: int) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Stages of `epochs` epochs with constant learning rate, each `factor` times the one before.

    With `fresh_optimizer`, each stage begins with a new optimizer, as in the authors' code.
    """

    epochs: tuple[int, ...] = (80, 60, 40, 20)
    factor: float = 0.1
    fresh_optimizer: bool = True
    first_epoch: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_types(self)
        if not isinstance(self.epochs, list | tuple) or not self.epochs:
            got = shown(self.epochs)
            raise ArgumentError(f"epochs must hold the lengths of stages, such as (80, 60), at least one; got {got}")
        for length in self.epochs:
            positive_whole("epochs", length)
        within("factor", self.factor, "(0, 1e6]")

    @property
    def total_epochs(self) -> int:
        return sum(self.epochs)

    def scale(self, epoch: float) -> float:
        return float(self.factor ** sum(epoch >= start for start in self._later_starts()))

    def restarts(self, epoch: int) -> bool:
        return self.fresh_optimizer and epoch in self._later_starts()

    def _later_starts(self) -> list[int]:
        return [sum(self.epochs[:stage]) for stage in range(1, len(self.epochs))]


@dataclass(frozen=True, kw_only=True)
class Cosine(Constant):
    """Linear warm-up over `warmup` epochs, then half a cosine down to the factor `final`."""

    warmup: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        within("warmup", self.warmup, f"[0, {self.epochs})", f"epochs={self.epochs}")
        within("final", self.final, "[0, 1]", "a share of the learning rate")

    def scale(self, epoch: float) -> float:
        if epoch < self.warmup:
            return epoch / self.warmup
        return _half_cosine(1.0, self.final, (epoch - self.warmup) / (self.epochs - self.warmup))


@dataclass(frozen=True, kw_only=True)
class OneCycle(Constant):
    """Half a cosine up from the factor `start` to 1 over the fraction `rise` of the run, then half a cosine down to
    `final` (Smith and Topin, 2018)."""

    rise: float = 0.3
    start: float = 0.04
    final: float = 4e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        within("rise", self.rise, "(0, 1)")
        for name in ("start", "final"):
            within(name, getattr(self, name), "[0, 1]", "a share of the learning rate")

    def scale(self, epoch: float) -> float:
        progress = epoch / self.epochs
        if progress < self.rise:
            return _half_cosine(self.start, 1.0, progress / self.rise)
        return _half_cosine(1.0, self.final, (progress - self.rise) / (1 - self.rise))


@dataclass(frozen=True, kw_only=True)
class Section:
    """The epochs from `begin` to `end` of another schedule, as if those before had been trained already."""

    whole: Constant | Stages | Cosine | OneCycle = field(default_factory=Constant)
    begin: int = 0
    end: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end <= self.whole.total_epochs:
            limits = f"0 <= begin < end <= {self.whole.total_epochs}"
            raise ArgumentError(f"begin and end must be epochs with {limits}, got {self.begin} and {self.end}")

    @property
    def first_epoch(self) -> int:
        return self.begin

    @property
    def total_epochs(self) -> int:
        return self.end

    def scale(self, epoch: float) -> float:
        return self.whole.scale(epoch)

    def restarts(self, epoch: int) -> bool:
        return self.whole.restarts(epoch)


def kl_factor(warmup: str, *, epoch: int, step: int, steps: int, epochs: float = 1.0) -> float:
    """The factor of alpha / N at one step, so that the KL does not dominate the data term early on.

    `"constant"`: 1. `"linear"`: from 0 to 1 over `epochs` epochs. `"blundell"`: within every epoch
    M 2^(M-i) / (2^M - 1) at step i of M, which has mean 1 (Blundell et al., 2015, section 3.4). `epoch` and `step`
    count from 0; `steps` is M.
    """
    if warmup == "constant":
        return 1.0
    if warmup == "linear":
        return min(1.0, (epoch + (step + 1) / steps) / epochs)
    if warmup == "blundell":
        # numerator and denominator divided by 2^M, which would overflow
        return steps * 2.0 ** -(step + 1) / (1 - 2.0**-steps)
    raise unknown("kl_warmup", warmup, KL_WARMUPS)


def _half_cosine(begin: float, end: float, progress: float) -> float:
    return end + (begin - end) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
