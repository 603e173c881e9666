"""Projected gradient ascent: FGSM, BIM, PGD (eq. 1 to 3), and ascent along the plain gradient (eq. 21)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from advbnn.attacks.base import Attack, BestPoints, like_rows
from advbnn.attacks.oracle import Oracle
from advbnn.attacks.threat import Ball, Threat
from advbnn.errors import ArgumentError, one_of, positive_whole, within

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
}
PICKS = ("last", "best", "first")


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """x <- Pi(x + a_t d(g_t)): steepest ascent on the expected loss, with fresh weight samples per step (eq. 2, 3).

    d is the sign in linf and the unit gradient in l2 (see `Ball.direction`). Restarts and `pick="best"` compare points
    by the margin of the mean probability over `selection_samples` samples.

    Args:
        step_size: a, on the scale of the inputs; 2.5 eps / steps when neither step size is given.
        relative_step_size: a as a fraction of eps.
        random_start: start at a random point of the allowed set instead of at x.
        restarts: independent runs; each example keeps the best.
        schedule: a_t: `"constant"`, or decaying to 0 as a `"linear"` or `"cosine"` function.
        momentum: weight of the past direction; each gradient is first scaled to mean absolute value 1.
        pick: return the `"last"` point of a run, the `"best"` of x and all iterates, or the `"first"` that is
            misclassified by the samples of a step: the example then moves no further, as in some published evaluations.
    """

    steps: int = 20
    step_size: float | None = None
    relative_step_size: float | None = None
    random_start: bool = True
    restarts: int = 1
    schedule: str = "constant"
    momentum: float = 0.0
    pick: str = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_whole("steps", self.steps)
        positive_whole("restarts", self.restarts)
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("pick", self.pick, PICKS)
        if self.step_size is not None and self.relative_step_size is not None:
            raise ArgumentError("give step_size (absolute) or relative_step_size (a fraction of eps), not both")
        for name in ("step_size", "relative_step_size"):
            if getattr(self, name) is not None:
                within(name, getattr(self, name), "(0, 1e30]")
        within("momentum", self.momentum, "[0, 1e6]")
        if self.pick == "first" and not self.objective.classifies:
            raise ArgumentError(f"pick='first' needs classes, which loss={self.loss!r} does not have; use pick='best'")
        within("step_size", self.first_step, "[0, 1e30]", "an infinite eps needs a step_size")

    @property
    def first_step(self) -> float:
        """The first step size, a_0."""
        if self.step_size is not None:
            return self.step_size
        if self.relative_step_size is not None:
            return self.relative_step_size * self.threat.eps
        return self._usual_step

    @property
    def _usual_step(self) -> float:
        return 2.5 / self.steps * self.threat.eps

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        ball = self.threat.around(x)
        if self.restarts == 1 and self.pick != "best":
            return self._ascend(oracle, ball, y)
        best = BestPoints(x)
        if self.pick == "best":
            best.offer(x, oracle.selection_score(x, y, self.selection_samples))
        for restart in range(self.restarts):
            last = self._ascend(oracle, ball, y, restart, best if self.pick == "best" else None)
            best.offer(last, oracle.selection_score(last, y, self.selection_samples))
        return best.x

    def _ascend(self, oracle: Oracle, ball: Ball, y: Tensor, run: int = 0, best: BestPoints | None = None) -> Tensor:
        x_adv = oracle.start(self.threat) if self.random_start else ball.x
        past = torch.zeros_like(x_adv)
        for step in range(self.steps):
            loss = oracle.gradient(x_adv, y, self.objective, self.eot)
            if best is not None:
                best.offer(x_adv, oracle.selection_score(x_adv, y, self.selection_samples, known=loss))
            gradient = loss.gradient
            if self.momentum:
                gradient = past = self.momentum * past + _normalised(gradient)
            size = self.first_step * SCHEDULES[self.schedule](step / self.steps)
            moved = ball.project(torch.add(x_adv, self._direction(ball, gradient, x_adv), alpha=size))
            if self.pick == "first":
                moved = torch.where(like_rows(oracle.score(loss.prediction, y) > 0, moved), x_adv, moved)
            x_adv = moved
            oracle.report(run * self.steps + step + 1, self.restarts * self.steps)
        return x_adv

    def _direction(self, ball: Ball, gradient: Tensor, at: Tensor) -> Tensor:
        return ball.direction(gradient, at)


@dataclass(frozen=True, kw_only=True)
class BIM(PGD):
    """Iterated FGSM: PGD from the input itself (Kurakin et al., 2016)."""

    steps: int = 10
    random_start: bool = False


@dataclass(frozen=True, kw_only=True)
class FGSM(PGD):
    """x + eps d(g): one step of full size from the input itself (Goodfellow et al., 2014)."""

    steps: int = field(default=1, init=False)
    random_start: bool = False

    @property
    def _usual_step(self) -> float:
        return self.threat.eps


@dataclass(frozen=True, kw_only=True)
class GradientAscent(PGD):
    """xi <- xi + eta_t g_t: stochastic ascent along the plain gradient, neither signed nor scaled (eq. 21).

    The step scales with the gradient, so `step_size` eta, 1 by default, depends on the model. Convergence needs a
    decaying schedule.
    """

    steps: int = 100
    random_start: bool = False
    schedule: str = "cosine"

    @property
    def _usual_step(self) -> float:
        return 1.0

    def _direction(self, ball: Ball, gradient: Tensor, at: Tensor) -> Tensor:
        return gradient


def paper_pgd(eps: float, steps: int = 20) -> PGD:
    """The authors' attack: linf, no random start, one weight sample per step, step size 0.007 at every radius."""
    return PGD(Threat("linf", eps), steps=steps, step_size=0.007, random_start=False)


def _normalised(gradient: Tensor) -> Tensor:
    mean = gradient.abs().reshape(len(gradient), -1).mean(1)
    return gradient / like_rows(mean.clamp_min(torch.finfo(gradient.dtype).tiny), gradient)
