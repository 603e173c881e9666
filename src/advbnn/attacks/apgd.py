"""Auto-PGD: projected gradient ascent with an adaptive step size (Croce and Hein, 2020)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from advbnn.attacks.base import Attack, BestPoints, like_rows
from advbnn.attacks.losses import Objective, TargetedDLR
from advbnn.attacks.oracle import Oracle
from advbnn.attacks.threat import Ball
from advbnn.errors import ArgumentError, one_of, positive_whole

_MOMENTUM = 0.25
_RISING_SHARE = 0.75

COMPARED_AT = ("every step", "checkpoints")


@dataclass(frozen=True, kw_only=True)
class APGD(Attack):
    """Gradient ascent with momentum whose step halves, example by example, when the objective stops rising.

    z = Pi(x_k + a d(g_k)), x_{k+1} = Pi(x_k + 0.75 (z - x_k) + 0.25 (x_k - x_{k-1})), from a = 2 eps. At checkpoints
    that become denser, an example whose objective rose in too few steps, or whose maximum did not improve, halves its
    step and restarts from its best point.

    For a random network, the objective that controls the steps and selects the returned point is averaged over
    `selection_samples` samples, the same at every step; gradients use `eot` fresh samples. Where these means are
    exact, as of a deterministic network, later runs leave out examples that are misclassified.

    With `compare="checkpoints"` the objective is averaged over the samples of the gradient between two checkpoints,
    without further passes. They favour points that happen to do well on them, so that the selection samples are asked
    at every checkpoint, and at the end, about the best point since the last one and about the current one.

    Args:
        restarts: runs, each from a random point; every example keeps its best.
        targets: with `loss="dlr"`: run once towards each of this many most likely wrong classes, with the targeted
            DLR loss (z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2). `y` still holds the true labels. Classes with a
            logit of -inf are left out.
        compare: where points are compared on the selection samples: at `"every step"`, or at `"checkpoints"`.
    """

    steps: int = 100
    restarts: int = 1
    targets: int | None = None
    compare: str = "every step"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_whole("steps", self.steps)
        positive_whole("restarts", self.restarts)
        if not math.isfinite(self.threat.eps):
            raise ArgumentError("APGD needs a finite eps, which sets its first step; use CW for an unbounded threat")
        one_of("compare", self.compare, COMPARED_AT)
        if self.targets is not None:
            positive_whole("targets", self.targets)
            if self.loss != "dlr" or self.targeted:
                raise ArgumentError(f"targets needs loss='dlr', targeted=False, got {self.loss!r}, {self.targeted}")

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        clean = oracle.selection_loss(x, y, self.objective, self.selection_samples)
        best = BestPoints(x)
        best.offer(x, oracle.score(clean.prediction, y))
        runs = self._runs(clean.prediction, y) * self.restarts
        for number, (objective, labels) in enumerate(runs):
            start = oracle.start(self.threat)
            active = torch.arange(len(x), device=x.device)
            if objective.classifies and oracle.exact(self.eot) and oracle.exact(self.selection_samples):
                active = active[best.score <= 0]
            if len(active) == 0:
                break
            ball, progress = self.threat.around(x[active]), (number, len(runs))
            peak = self._climb(oracle, objective, ball, y[active], labels[active], start[active], active, progress)
            best.offer(peak.x, peak.score, active)
        return best.x

    def _runs(self, prediction: Tensor, y: Tensor) -> list[tuple[Objective, Tensor]]:
        if self.targets is None:
            return [(self.objective, y)]
        classes = prediction.shape[1]
        if self.targets >= classes:
            raise ArgumentError(f"targets must be below the number of classes, {classes}, got {self.targets}")
        likeliest = prediction.scatter(1, y[:, None], -torch.inf).topk(self.targets, dim=1)
        possible = (likeliest.values > -torch.inf).sum(1, keepdim=True).clamp_min(1)
        # an example with fewer possible targets than others starts again with its most likely one
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
    ) -> BestPoints:
        """One run: the iterate with the best score for each example."""
        found, peak = BestPoints(start), BestPoints(start)
        point = before = start
        size = torch.full((len(start),), 2 * self.threat.eps, dtype=start.dtype, device=start.device)
        halved = torch.ones_like(size, dtype=torch.bool)
        value = peak_then = peak.score
        gradient = peak_gradient = lately_gradient = torch.zeros_like(start)
        # since the last checkpoint, by the samples of the gradient
        rarely = self.compare == "checkpoints" and not oracle.exact(self.eot)
        lately = BestPoints(start)
        rises, checked, reviewed = torch.zeros_like(size), 0, checkpoints(self.steps)
        for step in range(self.steps + 1):
            if step > 0:
                aim = ball.project(point + like_rows(size, point) * ball.direction(gradient, point))
                momentum = _MOMENTUM if step > 1 else 0.0
                moved = torch.lerp(aim, point, momentum) + momentum * (point - before)
                before, point = point, ball.project(moved)
            local = oracle.gradient(point, labels, objective, self.eot, active)
            gradient, candidates = local.gradient, [(point, local.gradient)]
            if rarely:
                better = lately.offer(point, local.values)
                lately_gradient = torch.where(like_rows(better, point), gradient, lately_gradient)
                asks = step == self.steps or step in reviewed
                candidates = [(lately.x, lately_gradient), (point, gradient)] if asks else []
            now, known = local.values, None if rarely else local
            for one, its_gradient in candidates:
                chosen = oracle.selection_loss(one, labels, objective, self.selection_samples, known, active)
                found.offer(one, oracle.score(chosen.prediction, y))
                better = peak.offer(one, chosen.values)
                peak_gradient = torch.where(like_rows(better, point), its_gradient, peak_gradient)
                now = now if rarely else chosen.values
            if step > 0:
                rises = rises + (now > value)
            value = now
            oracle.report(run[0] * self.steps + step, run[1] * self.steps)
            if step in reviewed:
                stuck = ~halved & (peak.score <= peak_then)
                halved = stuck | (rises < _RISING_SHARE * (step - checked))
                size = torch.where(halved, size / 2, size)
                back = like_rows(halved, point)
                point, before = torch.where(back, peak.x, point), torch.where(back, peak.x, before)
                gradient, value = torch.where(back, peak_gradient, gradient), torch.where(halved, peak.score, value)
                peak_then, rises, checked = peak.score, torch.zeros_like(rises), step
                lately = BestPoints(point)
        return found


def checkpoints(steps: int) -> set[int]:
    """The steps after which step sizes are reviewed: intervals of 0.22 of the run, shrinking to 0.06."""
    length, position, result = 0.22, 0.22, set()
    while position <= 1:
        result.add(math.ceil(round(position * steps, 6)))
        length = max(length - 0.03, 0.06)
        position += length
    return result
