"""Auto-PGD: projected gradient ascent that sets its own step size (Croce and Hein, 2020)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from advbnn.attacks.base import Attack, Best, check_count, like_rows
from advbnn.attacks.losses import Objective, TargetedDLR
from advbnn.attacks.oracle import Oracle
from advbnn.attacks.threat import Ball
from advbnn.errors import ArgumentError

_MOMENTUM = 0.25
_RISING_SHARE = 0.75


@dataclass(frozen=True, kw_only=True)
class APGD(Attack):
    """Gradient ascent with momentum whose step halves, example by example, when the objective stops rising.

    z = Pi(x_k + a d(g_k)), x_{k+1} = Pi(x_k + 0.75 (z - x_k) + 0.25 (x_k - x_{k-1})), from a = 2 eps. At checkpoints
    that grow denser, an example whose objective rose in too few of the steps, or whose best is the old one, halves
    its step and goes back to its best point.

    For a random network the objective that decides all this is averaged over `selection_samples` draws of its own,
    the same at every step, and so is the choice of the point returned; gradients use `eot` other, fresh draws. A
    deterministic network is not attacked further once an example has fallen.

    Args:
        steps: number of steps of each run.
        restarts: runs, each from a random point; every example keeps its best.
        targets: with `loss="dlr"`: attack towards each of the so many likeliest wrong classes in turn, by the
            targeted DLR loss (z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2). `y` still holds the true labels. Classes
            that the network rules out, with logits of -inf, are none of them: where fewer are left, these are tried.
    """

    steps: int = 100
    restarts: int = 1
    targets: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps)
        check_count("restarts", self.restarts)
        if not math.isfinite(self.threat.eps):
            raise ArgumentError(
                "APGD takes its first step from eps, which must be finite; use CW for an unbounded threat"
            )
        if self.targets is not None:
            check_count("targets", self.targets)
            if self.loss != "dlr" or self.targeted:
                raise ArgumentError(
                    "targets chooses wrong classes itself and goes with loss='dlr', targeted=False, "
                    f"got loss={self.loss!r}, targeted={self.targeted}"
                )

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        clean = oracle.select(x, y, self.objective, self.selection_samples)
        best = Best(x)
        best.offer(x, oracle.verdict(clean.prediction, y))
        runs = self._aims(clean.prediction, y) * self.restarts
        for number, (objective, labels) in enumerate(runs):
            start = oracle.start(self.threat)
            active = torch.arange(len(x), device=x.device)
            if objective.classifies and not oracle.random:
                active = active[best.score <= 0]
            if len(active) == 0:
                break
            ball = self.threat.around(x[active])
            found = self._climb(
                oracle, objective, ball, y[active], labels[active], start[active], active, (number, len(runs))
            )
            best.offer(found.x, found.score, active)
        return best.x

    def _aims(self, prediction: Tensor, y: Tensor) -> list[tuple[Objective, Tensor]]:
        """What to climb, one run each: the objective, and its labels."""
        if self.targets is None:
            return [(self.objective, y)]
        classes = prediction.shape[1]
        if self.targets >= classes:
            raise ArgumentError(f"targets must be below the number of classes, {classes}, got {self.targets}")
        likeliest = prediction.scatter(1, y[:, None], -torch.inf).topk(self.targets, dim=1)
        possible = (likeliest.values > -torch.inf).sum(1, keepdim=True).clamp_min(1)
        # an example with fewer classes to go to than others begins again with its likeliest
        turns = torch.arange(int(possible.max()), device=y.device) % possible
        wrong = likeliest.indices.gather(1, turns)
        objective = TargetedDLR(loss="dlr", average=self.average)
        return [(objective, torch.stack([y, target], 1)) for target in wrong.unbind(1)]

    def _climb(
        self,
        oracle: Oracle,
        objective: Objective,
        ball: Ball,
        y: Tensor,
        labels: Tensor,
        start: Tensor,
        active: Tensor,
        run: tuple[int, int],
    ) -> Best:
        """One run: for each example the point that was judged best."""
        found, peak = Best(start), Best(start)
        point = before = start
        size = torch.full((len(start),), 2 * self.threat.eps, dtype=start.dtype, device=start.device)
        halved = torch.ones_like(size, dtype=torch.bool)
        value = peak_then = peak.score
        gradient = peak_gradient = torch.zeros_like(start)
        rises, checked, checkpoints = torch.zeros_like(size), 0, _checkpoints(self.steps)
        for step in range(self.steps + 1):
            if step > 0:
                aim = ball.project(point + like_rows(size, point) * ball.direction(gradient, point))
                momentum = _MOMENTUM if step > 1 else 0.0
                moved = torch.lerp(aim, point, momentum) + momentum * (point - before)
                before, point = point, ball.project(moved)
            slope = oracle.gradient(point, labels, objective, self.eot, active)
            answer = oracle.select(point, labels, objective, self.selection_samples, known=slope, active=active)
            found.offer(point, oracle.verdict(answer.prediction, y))
            better = peak.offer(point, answer.values)
            gradient = slope.gradient
            peak_gradient = torch.where(like_rows(better, point), gradient, peak_gradient)
            if step > 0:
                rises = rises + (answer.values > value)
            value = answer.values
            oracle.report(run[0] * self.steps + step, run[1] * self.steps)
            if step in checkpoints:
                stuck = ~halved & (peak.score <= peak_then)
                halved = stuck | (rises < _RISING_SHARE * (step - checked))
                size = torch.where(halved, size / 2, size)
                back = like_rows(halved, point)
                point, before = torch.where(back, peak.x, point), torch.where(back, peak.x, before)
                gradient, value = torch.where(back, peak_gradient, gradient), torch.where(halved, peak.score, value)
                peak_then, rises, checked = peak.score, torch.zeros_like(rises), step
        return found


def _checkpoints(steps: int) -> set[int]:
    """The steps after which step sizes are reviewed: intervals of 0.22 of the run at first, shrinking to 0.06."""
    length, position, result = 0.22, 0.22, set()
    while position <= 1:
        result.add(math.ceil(round(position * steps, 6)))
        length = max(length - 0.03, 0.06)
        position += length
    return result
