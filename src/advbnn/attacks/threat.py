"""The threat model: how far, in which norm and within which box an input may be changed (eq. 1)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from advbnn.errors import ArgumentError, one_of, within
from advbnn.names import NORMS

_ORDERS = {"linf": math.inf, "l2": 2.0, "l1": 1.0}

_SPARSITY = 0.05
"""Fraction of the coordinates that an l1 step changes; the exact steepest step changes a single one."""


@dataclass(frozen=True)
class Threat:
    """All inputs within `eps` of the original in `norm`, inside the box `bounds`.

    Args:
        norm: `"linf"`, `"l2"` or `"l1"`, of the whole example.
        eps: the radius gamma of eq. 1 on the scale of the inputs; `math.inf` leaves only the box.
        bounds: smallest and largest valid value of an input, rounded to the input's dtype.
    """

    norm: str = "linf"
    eps: float = 8 / 255
    bounds: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        one_of("norm", self.norm, NORMS)
        if self.eps != math.inf:
            within("eps", self.eps, "[0, 1e30]", "in [0, 1] try 8/255 without quotes; inf leaves only the box")
        numbers = isinstance(self.bounds, Sequence) and all(isinstance(bound, Real) for bound in self.bounds)
        if not numbers or len(self.bounds) != 2 or not self.bounds[0] < self.bounds[1]:
            raise ArgumentError(f"bounds must be two numbers (low, high) with low < high, got {self.bounds!r}")
        # numbers of NumPy and lists are the same threat as Python's numbers and tuples
        object.__setattr__(self, "eps", float(self.eps))
        object.__setattr__(self, "bounds", tuple(map(float, self.bounds)))

    @property
    def holds_everything(self) -> bool:
        """Whether a finite linf radius allows every point of the box, as 8 does for pixels in [0, 1]."""
        return self.norm == "linf" and self.bounds[1] - self.bounds[0] < self.eps < math.inf

    def around(self, x: Tensor) -> "Ball":
        """The allowed set around the batch `x`."""
        return Ball(self, x)

    def start(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A random point of the allowed set around each example."""
        return Ball(self, x).start(generator)

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """`x_adv` moved into the allowed set around `x`."""
        return Ball(self, x).project(x_adv)

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The norm of each example's perturbation, measured in float64, [n]."""
        lengths: Tensor = torch.linalg.vector_norm(_rows(x_adv.double() - x.double()), _ORDERS[self.norm], dim=1)
        return lengths


class Ball:
    """The points that a threat allows around a batch `x`: the norm ball intersected with the box.

    Every point that `start` and `project` return satisfies both constraints after rounding: measured in its own
    dtype or in float64, no perturbation is longer than `eps` and no value leaves the box. Where rounding would
    overshoot, the value is moved one representable number towards `x`.
    """

    def __init__(self, threat: Threat, x: Tensor) -> None:
        self.threat, self.x = threat, x
        self.low, self.high = threat.bounds
        self.radius = _round_down(threat.eps, x.dtype)
        if threat.norm == "linf":
            self._lower = _not_beyond(x - self.radius, x, self.radius).clamp_(self.low, self.high)
            self._upper = _not_beyond(x + self.radius, x, self.radius).clamp_(self.low, self.high)
        else:
            # a norm is a sum, so that measuring it again may round each term and the total differently
            unit = torch.finfo(x.dtype).eps
            self.radius *= 1 - 2 * unit - math.log2(x[:1].numel() + 1) * min(unit, 2**-23)

    def start(self, generator: torch.Generator | None = None) -> Tensor:
        """A random point for each example: uniform in the ball, projected into the box (linf: uniform in both)."""
        x, dtype = self.x, torch.promote_types(self.x.dtype, torch.float32)
        if math.isinf(self.threat.eps) and (self.threat.norm != "linf" or math.isinf(self.high - self.low)):
            raise ArgumentError("a random start needs a finite eps or, in linf, bounds; or use random_start=False")
        if self.threat.norm == "linf":
            share = torch.rand(x.shape, generator=generator, device=x.device, dtype=dtype)
            return self.project(self._lower + (share * (self._upper - self._lower)).to(x.dtype))
        flat = _rows(x)
        n, size = flat.shape
        if self.threat.norm == "l2":
            noise = torch.randn(n, size, generator=generator, device=x.device, dtype=dtype)
            length = torch.rand(n, 1, generator=generator, device=x.device, dtype=dtype) ** (1 / max(size, 1))
            noise *= length / noise.norm(dim=1, keepdim=True).clamp_min(torch.finfo(dtype).tiny)
        else:
            # exponential spacings with random signs, the last one dropped, are uniform in the l1 ball
            spacing = torch.empty(n, size + 1, device=x.device, dtype=dtype).exponential_(generator=generator)
            sign = torch.rand(n, size, generator=generator, device=x.device, dtype=dtype).sub_(0.5).sign_()
            noise = sign * spacing[:, :-1] / spacing.sum(1, keepdim=True)
        return self.project(x + (self.radius * noise).view_as(x).to(x.dtype))

    def direction(self, gradient: Tensor, at: Tensor | None = None) -> Tensor:
        """The direction of steepest ascent with norm 1; 0 where the gradient is 0.

        linf: the sign. l2: the unit gradient. l1: the largest 5 % of the coordinates, in equal parts, without those
        of `at` that are at the edge of the box already (Tramer and Boneh, 2019).
        """
        if self.threat.norm == "linf":
            return gradient.sign()
        flat = _rows(gradient)
        if self.threat.norm == "l2":
            tiny = torch.finfo(flat.dtype).tiny
            # squares of small gradients would underflow, so the largest entry is scaled to 1 first
            flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(tiny)
            return (flat / self._length(flat).clamp_min(tiny)).view_as(gradient)
        if at is not None:
            blocked = torch.where(flat > 0, _rows(at) >= self.high, _rows(at) <= self.low)
            flat = flat.masked_fill(blocked, 0)
        count = max(1, round(_SPARSITY * flat.shape[1]))
        largest = flat.abs().topk(count, dim=1).indices
        chosen = torch.zeros_like(flat).scatter_(1, largest, flat.gather(1, largest).sign())
        return (chosen / count).view_as(gradient)

    def project(self, z: Tensor) -> Tensor:
        """`z` projected into the allowed set.

        linf and l1: the nearest allowed point. l2: the nearest point of the ball, then of the box, which does not
        lengthen the perturbation, as the box contains `x`.
        """
        if self.threat.norm == "linf":
            return torch.clamp(z, self._lower, self._upper)
        x = self.x.double()
        delta = _rows(z.double() - x)
        # projecting twice must not shorten a point again because of rounding
        fits = self._length(delta) <= self.radius * (1 + torch.finfo(self.x.dtype).eps / 2)
        shorter = delta
        if self.threat.norm == "l1":
            shorter = _project_l1(delta, _rows(torch.where(z > self.x, self.high - x, x - self.low)), self.radius)
        shorter = shorter * (self.radius / self._length(shorter).clamp_min(torch.finfo(x.dtype).tiny)).clamp_max(1)
        delta = torch.where(fits, delta, shorter).view_as(x)
        return _not_beyond((x + delta).to(self.x.dtype), self.x, delta.abs()).clamp_(self.low, self.high)

    def _length(self, rows: Tensor) -> Tensor:
        lengths: Tensor = torch.linalg.vector_norm(rows, _ORDERS[self.threat.norm], dim=1, keepdim=True)
        return lengths


def _project_l1(delta: Tensor, room: Tensor, radius: float) -> Tensor:
    """The perturbation nearest to `delta` with l1 norm at most `radius` and |entries| at most `room`.

    It is min(max(|delta| - t, 0), room) with the signs of delta, for the one t >= 0 that gives it the length
    `radius` (0 if it is short enough without). The length falls piecewise linearly in t, with kinks where an entry
    starts, |delta|, and where it has no more room, |delta| - room: sorting the kinks finds the piece.
    """
    size = delta.abs()
    kinks, order = torch.cat([size, size - room], 1).sort(dim=1, descending=True, stable=True)
    starts = order < size.shape[1]
    moving = torch.where(starts, 1.0, -1.0).to(size).cumsum(1)
    gained = torch.nan_to_num(moving[:, :-1] * (kinks[:, :-1] - kinks[:, 1:]))
    length = torch.cat([torch.zeros_like(kinks[:, :1]), gained.cumsum(1)], 1)
    piece = (length < radius).sum(1, keepdim=True).sub_(1).clamp_min_(0)
    t = kinks.gather(1, piece) - (radius - length.gather(1, piece)) / moving.gather(1, piece)
    # if no entry moves on the last piece, delta is within the radius
    t = torch.where(moving.gather(1, piece) > 0, t, 0).clamp_min(0)
    return delta.sign() * torch.minimum((size - t).clamp_min(0), room)


def _not_beyond(z: Tensor, x: Tensor, size: Tensor | float) -> Tensor:
    """`z`, moved one representable number towards `x` wherever it lies further from it than `size`."""
    return torch.where((z.double() - x.double()).abs() > size, torch.nextafter(z, x), z)


def _round_down(value: float, dtype: torch.dtype) -> float:
    """The largest number of `dtype` that is not above `value`."""
    nearest = torch.tensor(value, dtype=dtype)
    return (torch.nextafter(nearest, torch.zeros_like(nearest)) if nearest.item() > value else nearest).item()


def _rows(x: Tensor) -> Tensor:
    """One row per example, for any batch shape, including empty batches and scalars."""
    return x.reshape(len(x), math.prod(x.shape[1:]))
