"""HopSkipJump: an attack that sees labels only (Chen, Jordan and Wainwright, 2020)."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from advbnn.attacks.base import Attack, like_rows
from advbnn.attacks.oracle import Oracle
from advbnn.errors import ArgumentError, positive_whole
from advbnn.randomness import fresh_seed, seeded

_STARTS = 25
_HALVINGS = 10
_FIRST_WIDTH = 0.1


@dataclass(frozen=True, kw_only=True)
class HopSkipJump(Attack):
    """Walk along the decision boundary towards x, with a normal that is estimated from labels.

    From a misclassified point each round (1) bisects the way to x, down to a point b at the boundary, (2) estimates the
    normal as the mean of (phi_i - mean phi) u_i over random directions u_i, where phi_i is 1 if b + delta u_i is
    misclassified and -1 if not, and (3) jumps along it (in linf: along its sign), by the distance to x over the square
    root of the number of rounds, halved until the point is misclassified. No gradient, score or confidence is used, so
    nothing that hides these helps against it.

    The nearest point is returned, projected into the ball; with a finite radius an example stops once it lies within.
    A random network answers by the votes of its weight samples: of `eot` fresh ones for each direction, and of the
    `selection_samples` for all other decisions, where they must agree by two standard errors. A targeted attack only
    moves examples for which noise of the target class is found.

    Args:
        queries: the budget of decisions per example, each of which may use several weight samples.
        directions: random directions of the first round; round r uses sqrt(r) times as many.
    """

    loss: str = field(default="margin", init=False, repr=False)
    queries: int = 5000
    directions: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_whole("queries", self.queries)
        positive_whole("directions", self.directions)
        if self.threat.norm == "l1":
            raise ArgumentError("HopSkipJump measures distance in norm 'l2' or 'linf', got 'l1'; use Square")
        if not all(map(math.isfinite, self.threat.bounds)):
            raise ArgumentError(f"HopSkipJump starts anywhere in the box, which must be finite: {self.threat.bounds}")

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        walk = _Walk(self, oracle, x, y)
        walk.start()
        size = x[0].numel()
        # the published precision of the bisection, and with it the width of the differences
        theta = size**-1.5 if self.threat.norm == "l2" else size**-2.0
        bisections = math.ceil(-math.log2(theta)) if size > 1 else 1
        width = torch.full((len(x),), _FIRST_WIDTH * (self.threat.bounds[1] - self.threat.bounds[0]), device=x.device)
        if walk.affords(bisections):
            walk.bisect(bisections)
        turn = 1
        while walk.affords((count := int(self.directions * math.sqrt(turn))) + _HALVINGS + bisections):
            walk.jump(walk.normal(count, width), turn)
            walk.bisect(bisections)
            width = walk.distance.to(width) * theta * (math.sqrt(size) if self.threat.norm == "l2" else size)
            turn += 1
        return walk.result()


class _Walk:
    """The points of a chunk on their way; `distance` is infinite for those that have no misclassified point yet."""

    def __init__(self, attack: HopSkipJump, oracle: Oracle, x: Tensor, y: Tensor) -> None:
        self._attack, self._oracle, self._x, self._y = attack, oracle, x, y
        self._point, self._threat = x.clone(), attack.threat
        self._wide = torch.promote_types(x.dtype, torch.float32)
        self.distance = torch.full((len(x),), torch.inf, dtype=torch.float64, device=x.device)
        self._left = torch.full((len(x),), attack.queries, device=x.device)
        self._active = torch.arange(len(x), device=x.device)

    def start(self) -> None:
        """Misclassified points: x itself, its inverse, or noise between dark and light."""
        low, high = self._threat.bounds
        for number in range(_STARTS):
            noise = self._oracle.rand(*self._x.shape[1:])  # for all examples, so that splits agree
            point = (low + (high - low) * noise**2.0 ** (number % 5 - 2)).clamp(low, high).to(self._x.dtype)
            if number < 2:
                point = self._x if number == 0 else (low + high - self._x).clamp(low, high)
            rows = (self.distance.isinf() & (self._left > 0)).nonzero().squeeze(1)
            if len(rows):
                self._move(rows[self._wrong(point[rows], rows)], point)

    def affords(self, cost: int) -> bool:
        """Whether any example still walks and can afford `cost` queries, and one for the `result`."""
        enough = self._threat.eps if math.isfinite(self._threat.eps) else 0.0
        walking = self.distance.isfinite() & (self.distance > enough) & (self._left > cost)
        self._active = walking.nonzero().squeeze(1)
        if len(self._active):
            self._oracle.report(self._attack.queries - int(self._left[self._active].max()), self._attack.queries)
        return len(self._active) > 0

    def bisect(self, times: int) -> None:
        """Move towards x, by halves of the remaining way, as far as the label stays wrong."""
        rows, x, point = self._active, self._x[self._active], self._point[self._active]
        low, high = torch.zeros_like(self.distance[rows]), torch.ones_like(self.distance[rows])
        for _ in range(times if len(rows) else 0):
            middle = (low + high) / 2
            wrong = self._wrong(self._between(x, point, middle), rows)
            low, high = torch.where(wrong, low, middle), torch.where(wrong, middle, high)
        self._move(rows, self._point.index_copy(0, rows, self._between(x, point, high)))

    def normal(self, count: int, width: Tensor) -> Tensor:
        """The estimated normal of the boundary at the active points, of norm 1."""
        oracle, rows = self._oracle, self._active
        at, reach = self._point[rows].to(self._wide), like_rows(width[rows], self._x).to(self._wide)
        total, weighted, answers = torch.zeros_like(at), torch.zeros_like(at), at.new_zeros(len(rows))
        # one weight sample for each direction; a deterministic network takes several directions at a time
        together = oracle.together(len(rows), self._attack.eot)
        with seeded(fresh_seed(), at.device):
            for first in range(0, count, together):
                u = torch.stack([self._direction()[rows] for _ in range(min(together, count - first))])
                probed = (at + reach * u).clamp(*self._threat.bounds).to(self._x.dtype)
                used = (probed.to(self._wide) - at) / reach
                y = self._y[rows].repeat(len(u))
                votes = oracle.votes(probed.flatten(0, 1), y, self._attack.eot, rows, len(u)).view(len(u), -1)
                phi = 2 * votes.to(self._wide) - 1
                answers += phi.sum(0)
                total += used.sum(0)
                weighted += (phi.view(*phi.shape, *[1] * (used.ndim - 2)) * used).sum(0)
        self._left[rows] -= count
        mean = answers / count
        # equal answers say nothing beyond the mean direction
        mean = torch.where(mean.abs() == 1, 0, mean)
        normal = weighted - like_rows(mean, total) * total
        if self._threat.norm == "linf":
            return normal.sign()
        return normal / like_rows(normal.flatten(1).norm(dim=1), normal).clamp_min(torch.finfo(normal.dtype).tiny)

    def _direction(self) -> Tensor:
        """A random direction of length 1 for every example."""
        shape = self._x.shape[1:]
        u = self._oracle.randn(*shape) if self._threat.norm == "l2" else 2 * self._oracle.rand(*shape) - 1
        return u / like_rows(u.flatten(1).norm(dim=1), u).clamp_min(torch.finfo(u.dtype).tiny)

    def jump(self, normal: Tensor, turn: int) -> None:
        """Move along the normal, by a step that is halved until the label is wrong."""
        rows, step = self._active, self.distance[self._active].to(self._wide) / math.sqrt(turn)
        waiting = torch.ones_like(rows, dtype=torch.bool)
        for _ in range(_HALVINGS):
            chosen = rows[waiting]
            if len(chosen) == 0:
                return
            moved = self._point[chosen].to(self._wide) + like_rows(step[waiting], normal) * normal[waiting]
            moved = moved.clamp(*self._threat.bounds).to(self._x.dtype)
            wrong = self._wrong(moved, chosen)
            self._move(chosen[wrong], self._point.index_copy(0, chosen, moved))
            waiting[waiting.nonzero().squeeze(1)[wrong]] = False
            step = step / 2

    def result(self) -> Tensor:
        """The points; those inside the ball are moved to its surface, away from the boundary, if they stay wrong."""
        inside = (self.distance > 0) & (self.distance <= self._threat.eps)
        rows = (inside & (self._left > 0)).nonzero().squeeze(1)
        if len(rows) and math.isfinite(self._threat.eps):
            scale = like_rows(self._threat.eps / self.distance[rows], self._x)
            x = self._x[rows]
            further = (x + scale * (self._point[rows] - x)).clamp(*self._threat.bounds).to(x.dtype)
            further = self._threat.project(further, x)
            wrong = self._wrong(further, rows)
            self._point[rows[wrong]] = further[wrong]
        return self._point

    def _between(self, x: Tensor, point: Tensor, share: Tensor) -> Tensor:
        """The point at this share of the distance: on the line in l2, cut to the smaller ball in linf."""
        delta = point.to(self._wide) - x.to(self._wide)
        share = like_rows(share, x).to(self._wide)
        if self._threat.norm == "l2":
            moved = share * delta
        else:
            radius = share * like_rows(delta.flatten(1).abs().amax(1), x)
            moved = torch.minimum(torch.maximum(delta, -radius), radius)
        return (x + moved).clamp(*self._threat.bounds).to(x.dtype)

    def _move(self, rows: Tensor, points: Tensor) -> None:
        self._point[rows] = points[rows]
        self.distance[rows] = self._threat.distance(points[rows], self._x[rows])

    def _wrong(self, points: Tensor, rows: Tensor) -> Tensor:
        self._left[rows] -= 1
        return self._oracle.misclassified(points, self._y[rows], self._attack.selection_samples, rows)
