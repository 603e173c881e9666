"""NES, SPSA and ZOO: ascent along gradients that are estimated from queries by central differences."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from advbnn.attacks.adam import AdamMoments
from advbnn.attacks.blackbox import BlackBox, Search
from advbnn.attacks.threat import Ball
from advbnn.errors import ArgumentError, positive_whole, within


@dataclass(frozen=True, kw_only=True)
class FiniteDifferences(BlackBox):
    """An attack that climbs along s u, where s = (f(x + sigma u) - f(x - sigma u)) / (2 sigma) for random u.

    Both ends of a difference use the same weight samples of a random network, so that their noise does not drown a
    small sigma. An end outside the box is clipped to it. A step costs 2 `directions` + 1 queries; the last one
    evaluates the new point.

    Args:
        sigma: half the distance between the two ends. The default suits float32. A network that quantises its input
            needs a sigma that spans its quantisation steps.
        step_size: length of a step in the threat's norm, on the scale of the inputs; eps / 5 when None.
    """

    directions: int = 25
    sigma: float = 0.01
    step_size: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_whole("directions", self.directions)
        within("sigma", self.sigma, "(0, 1e30]", "for images in [0, 1] try 0.01")
        if self.step_size is not None:
            within("step_size", self.step_size, "(0, 1e30]")
        within("step_size", self.step, "[0, 1e30]", "an infinite eps needs a step_size")

    @property
    def step(self) -> float:
        return self.threat.eps / 5 if self.step_size is None else self.step_size

    def _steps(self, search: Search, directions: int) -> Iterator[None]:
        """Yields once for every step that the query budget allows."""
        cost = 2 * directions + 1
        if self.queries <= cost:
            raise ArgumentError(f"queries={self.queries} must exceed {cost}; raise queries or lower directions")
        while search.affords(cost):
            yield

    def _ascent(self, search: Search, point: Tensor, draw: Callable[[], Tensor]) -> Tensor:
        """sum_i s_i u_i over `directions` random u_i; where the mean is exact, several at a time."""
        together = search.oracle.together(len(search.active), self.eot)
        total, left = _zeros(point), self.directions
        while left > 0:
            directions = torch.stack([draw() for _ in range(min(together, left))])
            left -= len(directions)
            for term in self._slopes(search, point, directions) * directions:
                total += term
        return total

    def _slopes(self, search: Search, point: Tensor, directions: Tensor) -> Tensor:
        """s of every example for each direction, 0 if it has stopped, shaped to be multiplied with the directions."""
        count, at = len(directions), point[search.active]
        offsets = self.sigma * directions[:, search.active]
        ends = ((at + o).clamp(*self.threat.bounds).to(at.dtype).flatten(0, 1) for o in (offsets, -offsets))
        ahead, behind = search.compare(*ends)
        slope = ((ahead - behind) / (2 * self.sigma)).to(directions.dtype).view(count, -1)
        slopes = slope.new_zeros(count, len(point)).index_copy_(1, search.active, slope)
        return slopes.view(count, -1, *[1] * (point.ndim - 1))

    def _step(self, search: Search, ball: Ball, point: Tensor, direction: Tensor) -> Tensor:
        """One projected step, and a query at the new point."""
        point = ball.project((point + self.step * direction).to(point.dtype))
        search.offer(point[search.active])
        return point


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))


def adam_direction(ball: Ball, at: Tensor, mean: Tensor, square: Tensor) -> Tensor:
    """The direction of norm 1 for Adam's moments.

    In linf it is Adam's own, mean / sqrt(square), which moves all coordinates by the same amount. That is not the
    steepest ascent in other norms, where the direction is the steepest ascent along the mean.
    """
    if ball.threat.norm == "linf":
        return mean / square.sqrt().clamp_min(torch.finfo(mean.dtype).tiny)
    return ball.direction(mean, at)


@dataclass(frozen=True, kw_only=True)
class NES(FiniteDifferences):
    """g = mean_i s_i u_i with u_i ~ N(0, I): the gradient of E f(x + sigma u), followed as in PGD (Ilyas et al., 2018).

    `momentum` is the weight of the past estimates.
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        within("momentum", self.momentum, "[0, 1)")

    def _search(self, search: Search) -> None:
        point, ball = search.x, self.threat.around(search.x)
        gradient = _zeros(point)
        for _ in self._steps(search, self.directions):
            draw = functools.partial(search.oracle.randn, *point.shape[1:])
            gradient = self.momentum * gradient + self._ascent(search, point, draw)
            point = self._step(search, ball, point, ball.direction(gradient, point))


@dataclass(frozen=True, kw_only=True)
class SPSA(FiniteDifferences):
    """g = mean_i s_i u_i with random signs u_i; projected Adam steps (Spall, 1992; Uesato et al., 2018)."""

    def _search(self, search: Search) -> None:
        point, ball = search.x, self.threat.around(search.x)
        shape, moments = point.shape[1:], AdamMoments(_zeros(point))
        for _ in self._steps(search, self.directions):
            signs = self._ascent(search, point, lambda: search.oracle.rand(*shape).sub_(0.5).sign_())
            direction = adam_direction(ball, point, *moments.update(signs / self.directions))
            point = self._step(search, ball, point, direction)


@dataclass(frozen=True, kw_only=True)
class ZOO(FiniteDifferences):
    """g_i = (f(x + sigma e_i) - f(x - sigma e_i)) / (2 sigma) for random coordinates i, each with its own moments.

    A step moves every coordinate along its current Adam moments (Chen et al., 2017). The distance to x is bounded by
    projection, as in all attacks here, not by a penalty. A step estimates `directions` coordinates, at most all.
    """

    directions: int = 128

    def _search(self, search: Search) -> None:
        point, ball = search.x, self.threat.around(search.x)
        zeros, size = _zeros(point), point[0].numel()
        moments, count = AdamMoments(zeros), min(self.directions, size)
        for _ in self._steps(search, count):
            chosen = search.oracle.rand(size).topk(count).indices
            gradient, known = zeros.clone(), torch.zeros_like(zeros, dtype=torch.bool)
            for coordinate in chosen.T:
                u = functional.one_hot(coordinate, size).to(zeros).view_as(zeros)
                (slope,) = self._slopes(search, point, u[None])
                gradient += slope * u
                known |= u > 0
            point = self._step(search, ball, point, adam_direction(ball, point, *moments.update(gradient, known)))
