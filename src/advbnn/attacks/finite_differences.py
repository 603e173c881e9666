"""Gradients from answers alone, by central differences, and the ascent along them: the base of NES, SPSA and ZOO."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from advbnn.attacks.base import check_count, like_rows
from advbnn.attacks.blackbox import BlackBox, Search
from advbnn.attacks.threat import Ball
from advbnn.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class FiniteDifferences(BlackBox):
    """An attack that climbs along s u, where s = (f(x + sigma u) - f(x - sigma u)) / (2 sigma) for random u.

    Both ends of a difference are asked on the same draws of a random network, so that a small sigma is not drowned
    by their noise; an end outside the box is moved to its edge. A step costs 2 `directions` + 1 queries, the last
    one to judge where it led.

    Args:
        directions: directions u that a step rests on.
        sigma: half the distance between the two ends; the default suits the rounding of float32. It must reach
            across the steps of a network that rounds its input.
        step_size: length of a step in the threat's norm, on the scale of the inputs; eps / 5 when None.
    """

    directions: int = 25
    sigma: float = 0.01
    step_size: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("directions", self.directions)
        if not 0 < self.sigma < math.inf:
            raise ArgumentError(f"sigma must be positive and finite, got {self.sigma}; for images in [0, 1] try 0.01")
        if self.step_size is not None and not 0 < self.step_size < math.inf:
            raise ArgumentError(f"step_size must be positive and finite, got {self.step_size}")
        if not math.isfinite(self.step):
            raise ArgumentError("with an infinite eps the step has no scale of its own: give step_size")

    @property
    def step(self) -> float:
        """The length of a step."""
        return self.threat.eps / 5 if self.step_size is None else self.step_size

    def _steps(self, search: Search, directions: int) -> Iterator[None]:
        """Once for every step that the budget allows."""
        cost = 2 * directions + 1
        if self.queries <= cost:
            raise ArgumentError(
                f"queries={self.queries} does not pay for a step: asking about x costs 1, {directions} directions "
                f"cost {cost}; raise queries or lower directions"
            )
        while search.affords(cost):
            yield

    def _slope(self, search: Search, point: Tensor, direction: Tensor) -> Tensor:
        """s of every example, 0 for those that no longer search, shaped to be multiplied with a batch."""
        at, offset = point[search.active], self.sigma * direction[search.active]
        ends = ((at + o).clamp(*self.threat.bounds).to(at.dtype) for o in (offset, -offset))
        ahead, behind = search.compare(*ends)
        slope = torch.zeros(len(point), device=point.device, dtype=direction.dtype)
        slope[search.active] = ((ahead - behind) / (2 * self.sigma)).to(slope.dtype)
        return like_rows(slope, point)

    def _step(self, search: Search, ball: Ball, point: Tensor, direction: Tensor) -> Tensor:
        """One step from the point, judged."""
        point = ball.project((point + self.step * direction).to(point.dtype))
        search.offer(point[search.active])
        return point


class Adam:
    """Adam's moments of a gradient, of which some coordinates may not have been seen (Kingma and Ba, 2014)."""

    decay, decay_of_squares = 0.9, 0.999

    def __init__(self, like: Tensor) -> None:
        self._mean, self._square, self._seen = (torch.zeros_like(like) for _ in range(3))

    def see(self, gradient: Tensor, where: Tensor) -> None:
        """Take a new gradient into the moments of the coordinates `where`; the others keep theirs."""
        self._seen += where
        self._mean = torch.where(where, torch.lerp(gradient, self._mean, self.decay), self._mean)
        self._square = torch.where(where, torch.lerp(gradient**2, self._square, self.decay_of_squares), self._square)

    def direction(self, ball: Ball, at: Tensor) -> Tensor:
        """The way up, of length 1 in the norm of the ball.

        In linf this is Adam's, the mean over the root of the mean square. That moves all coordinates by the same
        amount, which no other norm has as its steepest ascent: there it is the steepest ascent along the mean.
        """
        mean, square = (
            moment / (1 - decay ** self._seen.clamp_min(1))
            for moment, decay in ((self._mean, self.decay), (self._square, self.decay_of_squares))
        )
        if ball.threat.norm == "linf":
            return mean / square.sqrt().clamp_min(torch.finfo(mean.dtype).tiny)
        return ball.direction(mean, at)
