"""Square: random search over square patches of the image (Andriushchenko et al., 2020)."""

import functools
import math
from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from advbnn.attacks.base import like_rows
from advbnn.attacks.blackbox import BlackBox, Search
from advbnn.attacks.oracle import Oracle
from advbnn.attacks.threat import Ball
from advbnn.errors import ArgumentError, within

_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Proposals, of 10,000 in total, after which the fraction of pixels in a square is halved."""


@dataclass(frozen=True, kw_only=True)
class Square(BlackBox):
    """Proposes a change of one random square and keeps it if the objective increases.

    linf: each channel of the square becomes x + eps or x - eps; the start is vertical stripes (algorithm 2). l2: the
    square receives the radius used by itself and by a second square, and part of the unused radius, in the shape of
    two bumps of opposite sign; the start is a grid of such squares (algorithm 3). l1: the same with sharper bumps,
    projected (Croce and Hein, 2021). An input without channels has one, a vector is an image of one row, and a square
    that does not fit the image becomes a rectangle with as many pixels.

    A proposal costs one query. On a network that has to be sampled, proposal and incumbent are compared on the same
    weight samples, since a value that was high by chance would never be replaced, and an accepted proposal is tested
    for success: up to three queries.

    Args:
        p: fraction of the pixels in the first square; halved nine times, as published.
    """

    p: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        within("p", self.p, "(0, 1]", "it is a fraction of the pixels")
        if not math.isfinite(self.threat.eps):
            raise ArgumentError("eps must be finite for Square; for the whole box use its width")

    def size(self, progress: float, height: int, width: int) -> tuple[int, int]:
        """Height and width of the square after a fraction `progress` of all proposals."""
        pixels = height * width * self.p / 2 ** bisect_left(_HALVINGS, int(10_000 * progress))
        side = round(math.sqrt(pixels))
        tall = side if side <= width else round(pixels / width)
        wide = side if side <= height else round(pixels / height)
        if self.threat.norm == "linf":
            return min(max(tall, 1), height), min(max(wide, 1), width)
        # a bump has a middle, so its sides are odd
        return min(max(tall, 3) | 1, height), min(max(wide, 3) | 1, width)

    def _search(self, search: Search) -> None:
        shape, oracle = search.x.shape, search.oracle
        images = search.x.reshape(_image_shape(shape))
        pattern = self._pattern(images)
        points = pattern.start(oracle)
        if not search.affords(1):
            return
        if search.kept is not None:
            images, points = images[search.kept], points[search.kept]
            pattern = self._pattern(images)
        values = search.offer(points.view(-1, *shape[1:]))
        sampled = not (oracle.exact(self.eot) and oracle.exact(self.selection_samples))
        cost = 3 if sampled else 1
        # few proposals are accepted, so that a proposal to a random network costs about two queries
        proposals, done = (self.queries - 2) // min(cost, 2), 0
        while search.affords(cost):
            if search.kept is not None:
                images, points, values = (each[search.kept] for each in (images, points, values))
                pattern = self._pattern(images)
            size = self.size(done / proposals, *images.shape[2:])
            candidates = pattern.propose(points, size, oracle.rand(pattern.numbers)[search.active])
            inputs = candidates.view(-1, *shape[1:])
            if sampled:
                value, known = search.compare(inputs, points.view_as(inputs))
                better = value > known
                accepted = better.nonzero().squeeze(1)
                if len(accepted):
                    search.offer(inputs[accepted], accepted)
            else:
                value = search.offer(inputs)
                better = value > values
                values = torch.where(better, value, values)
            points = torch.where(like_rows(better, candidates), candidates, points)
            done += 1

    def _pattern(self, images: Tensor) -> "_Colours | _Bumps":
        ball = self.threat.around(images)
        return _Colours(ball) if self.threat.norm == "linf" else _Bumps(ball)


class _Colours:
    """Squares of one colour, at the corners of the linf ball."""

    def __init__(self, ball: Ball) -> None:
        self.ball = ball
        self.numbers = 2 + ball.x.shape[1]
        self._low, self._high = (ball.project(ball.x + sign * ball.radius) for sign in (-1, 1))

    def start(self, oracle: Oracle) -> Tensor:
        """Vertical stripes, one pixel wide."""
        _, channels, _, width = self.ball.x.shape
        return torch.where(oracle.rand(channels, 1, width) < 0.5, self._low, self._high)

    def propose(self, points: Tensor, size: tuple[int, int], u: Tensor) -> Tensor:
        """`points` with a square painted by the random numbers `u`."""
        last, rows, columns = _intervals(size, (points.shape[2], points.shape[3]), u.device)
        top, left = torch.minimum((u[:, :2] * (last + 1)).long(), last).unbind(1)
        inside = rows[top][:, None, :, None] & columns[left][:, None, None, :]
        dark = (u[:, 2:] < 0.5)[:, :, None, None]
        painted = torch.where(inside, torch.where(dark, self._low, self._high), points)
        # a square that has these colours already takes the opposite ones, to save the query
        same = (painted == points).flatten(1).all(1)[:, None, None, None]
        return torch.where(inside, torch.where(dark ^ same, self._low, self._high), points)


class _Bumps:
    """Squares of two bumps that share the radius of the ball, for l2 and l1."""

    def __init__(self, ball: Ball) -> None:
        self.ball = ball
        self.numbers = 5 + ball.x.shape[1]
        self._order = {"l2": 2, "l1": 1}[ball.threat.norm]
        self._wide = torch.promote_types(ball.x.dtype, torch.float32)

    def start(self, oracle: Oracle) -> Tensor:
        """A grid of squares, five by five or a little more."""
        _, channels, height, width = self.ball.x.shape
        side = max(min(height, width) // 5, 1)
        down, across = height // side, width // side
        u = oracle.rand(1 + channels, down, across).repeat_interleave(side, 2).repeat_interleave(side, 3)
        upright, lying = (pair.repeat(down, across) for pair in self._bumps(side, side))
        delta = torch.zeros_like(self.ball.x, dtype=self._wide)
        top, left = (height - side * down) // 2, (width - side * across) // 2
        grid = delta[:, :, top : top + side * down, left : left + side * across]
        grid.copy_(torch.where(u[:, :1] < 0.5, upright, lying) * _signs(u[:, 1:]))
        return self._within(delta)

    def propose(self, points: Tensor, size: tuple[int, int], u: Tensor) -> Tensor:
        """`points` with the radius used by two squares given to the first, both placed by random numbers `u`."""
        _, channels, height, width = points.shape
        delta = (points.to(self._wide) - self.ball.x.to(self._wide)).flatten(2)
        first, second = (
            _window(u[:, i], u[:, i + 1], size, height, width)[:, None].expand(-1, channels, -1) for i in (0, 2)
        )
        upright, lying = (pair.flatten() for pair in self._bumps(*size))
        fresh = torch.where(u[:, 4:5] < 0.5, upright, lying)[:, None] * _signs(u[:, 5:, None])
        shape = self._unit(fresh + self._unit(delta.gather(2, first)))
        either = torch.zeros_like(delta).scatter_(2, first, 1).scatter_(2, second, 1)
        held = self._power(delta * either)
        unused = (self.ball.radius**self._order - self._power(delta.flatten(1))).clamp_min(0)[:, None]
        length = (held + unused / channels) ** (1 / self._order)
        if self._order == 1:
            # too long if there are several channels; the projection shortens it and makes it sparse
            length = length * channels
        delta = delta.scatter(2, second, 0).scatter(2, first, shape * length)
        return self._within(delta.view_as(points))

    def _within(self, delta: Tensor) -> Tensor:
        """x + delta in the allowed set; in l2 delta is first scaled to the full radius."""
        if self._order == 2:
            delta = self.ball.radius * self._unit(delta.flatten(1)).view_as(delta)
        return self.ball.project((self.ball.x + delta).to(self.ball.x.dtype))

    def _bumps(self, *size: int) -> tuple[Tensor, Tensor]:
        return _bumps(*size, self._order, self._wide, self.ball.x.device)

    def _unit(self, delta: Tensor) -> Tensor:
        return functional.normalize(delta, self._order, dim=-1, eps=torch.finfo(delta.dtype).tiny)

    def _power(self, delta: Tensor) -> Tensor:
        """The norm to the power of its order, along the last dimension."""
        return delta.abs().pow(self._order).sum(-1, keepdim=True)


@functools.lru_cache(64)
def _bumps(height: int, width: int, order: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two bumps of opposite sign, one above the other and side by side, of norm 1."""

    def above(height: int, width: int) -> Tensor:
        sharpness = 2 if order == 2 else 4
        pair = torch.cat([bump(height // 2, width, sharpness), -bump(height - height // 2, width, sharpness)])
        unit: Tensor = pair / torch.linalg.vector_norm(pair, order)
        return unit.to(device, dtype)

    return above(height, width), above(width, height).T


def bump(height: int, width: int, sharpness: int) -> Tensor:
    """sum_{k >= r} 1 / (k + 1)^sharpness at each pixel, r being its distance from the middle in rings (eq. 2)."""
    rows, columns = (torch.arange(side).sub(side // 2).abs() for side in (height, width))
    ring = torch.maximum(rows[:, None], columns)
    terms = torch.arange(1, max(height, width) // 2 + 2, dtype=torch.float64).pow(-sharpness)
    return terms.flip(0).cumsum(0).flip(0)[ring]


def _image_shape(shape: torch.Size) -> tuple[int, int, int, int]:
    """Any batch shape as [n, channels, height, width]."""
    channels = shape[1] if len(shape) > 3 else 1
    width = shape[-1] if len(shape) > 1 else 1
    return shape[0], channels, math.prod(shape[1:]) // (channels * width), width


def _place(u: Tensor, size: int, limit: int) -> Tensor:
    """The uniform start of an interval of `size` within `limit`, [n, 1]."""
    return (u * (limit - size + 1)).long().clamp_max(limit - size)[:, None]


@functools.lru_cache(64)
def _intervals(size: tuple[int, int], shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The last starts of intervals of these sizes along rows and columns; masks of every interval, [starts, limit]."""
    limits = [limit - side for side, limit in zip(size, shape, strict=True)]
    masks = [
        torch.ones(last + 1, limit, dtype=torch.bool).triu_().tril_(side - 1)
        for last, side, limit in zip(limits, size, shape, strict=True)
    ]
    return torch.tensor(limits).to(device), masks[0].to(device), masks[1].to(device)


def _window(u: Tensor, v: Tensor, size: tuple[int, int], height: int, width: int) -> Tensor:
    """Indices of the pixels of a random rectangle in a flattened image, [n, pixels]."""
    rows = _place(u, size[0], height) + torch.arange(size[0], device=u.device)
    columns = _place(v, size[1], width) + torch.arange(size[1], device=u.device)
    return (rows[:, :, None] * width + columns[:, None, :]).flatten(1)


def _signs(u: Tensor) -> Tensor:
    """-1 or 1 with equal probability for uniform `u`."""
    return torch.where(u < 0.5, -1.0, 1.0).to(u.dtype)
