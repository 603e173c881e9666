"""FAB: the smallest perturbation, by projections onto the linearised decision boundary (Croce and Hein, 2020)."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from advbnn.attacks.base import Attack, like_rows
from advbnn.attacks.losses import Objective
from advbnn.attacks.oracle import Oracle
from advbnn.errors import ArgumentError, positive_whole

_OVERSHOOT = 1.05
_TOWARDS_X = 0.1
_BACK = 0.9


@dataclass(frozen=True, kw_only=True)
class FAB(Attack):
    """Walk along the boundary between the label's class and another one, drawn towards x.

    With the boundary {z: f + <g, z - x_k> = 0} linearised at x_k, where f = log p_t - log p_y, let d and d_x be the
    shortest steps onto it within the box, from x_k and from x. Then

        x_{k+1} = (1 - a) (x_k + 1.05 d) + a (x + 1.05 d_x),    a = min(|d| / (|d| + |d_x|), 0.1),

    and a point that is misclassified moves back to x + 0.9 (x_k - x). It has no step size, and does not depend on the
    scale of the logits. One run is made towards each of the `targets` most likely wrong classes.

    The nearest success is returned, projected into the ball. For the smallest perturbation of any size use
    `eps=math.inf`; with a finite radius an example is left alone once a success lies within it. On a random network
    gradients are averaged over `eot` samples, and success is measured on the selection samples.

    Args:
        restarts: runs towards each class; all but the first start at a random point, at half the radius.
    """

    loss: str = field(default="margin", init=False, repr=False)
    average: str = "probability"
    steps: int = 100
    targets: int = 9
    restarts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "targets", "restarts"):
            positive_whole(name, getattr(self, name))
        if self.restarts > 1 and not math.isfinite(self.threat.eps):
            raise ArgumentError(f"restarts={self.restarts} needs a finite eps, which sets the random starts; use 1")

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        nearest, last = x.clone(), x.clone()
        distance = torch.full((len(x),), torch.inf, dtype=torch.float64, device=x.device)
        clean = oracle.selection_loss(x, y, oracle.selection_objective, self.selection_samples).prediction
        distance[oracle.succeeds(clean, y, self.selection_samples)] = 0
        runs = self._runs(clean, y) * self.restarts
        enough = self.threat.eps if math.isfinite(self.threat.eps) else 0.0
        for number, (objective, labels) in enumerate(runs):
            point = x + (oracle.start(self.threat) - x) / 2 if number >= len(runs) // self.restarts else x
            for step in range(self.steps):
                active = (distance > enough).nonzero().squeeze(1)
                if len(active) == 0:
                    return nearest
                moved = self._step(oracle, point[active], x[active], labels[active], objective, active)
                loss = oracle.selection_loss(
                    moved, y[active], oracle.selection_objective, self.selection_samples, active=active
                )
                success = oracle.succeeds(loss.prediction, y[active], self.selection_samples)
                length = self.threat.distance(moved, x[active])
                nearer = active[success & (length < distance[active])]
                last = last.index_copy(0, active, moved)
                nearest[nearer], distance[nearer] = last[nearer], self.threat.distance(last[nearer], x[nearer])
                back = torch.lerp(x[active], moved, _BACK)
                point = point.index_copy(0, active, torch.where(like_rows(success, x), back, moved))
                oracle.report(number * self.steps + step + 1, len(runs) * self.steps)
        return torch.where(like_rows(distance.isinf(), x), last, nearest)

    def _runs(self, prediction: Tensor, y: Tensor) -> list[tuple[Objective, Tensor]]:
        """The function whose zero is the boundary, and the labels that it takes, of each run."""
        if self.targeted:
            return [(self.objective, y)]
        wrong = prediction.scatter(1, y[:, None], -torch.inf)
        classes = wrong.topk(min(self.targets, wrong.shape[1] - 1), dim=1).indices
        return [(Lead(average=self.average), torch.stack([y, target], 1)) for target in classes.unbind(1)]

    def _step(
        self, oracle: Oracle, point: Tensor, x: Tensor, labels: Tensor, objective: Objective, active: Tensor
    ) -> Tensor:
        lead = oracle.gradient(point, labels, objective, self.eot, active)
        wide = torch.promote_types(x.dtype, torch.float32)
        value, slope, origin, at = (t.to(wide).flatten(1) for t in (lead.values[:, None], lead.gradient, x, point))
        # a class that is impossible has no boundary
        value = value.nan_to_num(0, 0, 0).squeeze(1)
        ahead = to_hyperplane(at, slope, -value, self.threat.norm, self.threat.bounds)
        from_x = to_hyperplane(
            origin, slope, -(value + (slope * (origin - at)).sum(1)), self.threat.norm, self.threat.bounds
        )
        order = {"linf": math.inf, "l2": 2, "l1": 1}[self.threat.norm]
        near, far = (torch.linalg.vector_norm(step, order, dim=1, keepdim=True) for step in (ahead, from_x))
        share = (near / (near + far).clamp_min(torch.finfo(wide).tiny)).clamp_max(_TOWARDS_X)
        moved = (1 - share) * (at + _OVERSHOOT * ahead) + share * (origin + _OVERSHOOT * from_x)
        inside: Tensor = moved.clamp(*self.threat.bounds).view_as(x).to(x.dtype)
        return inside


@dataclass(frozen=True, kw_only=True)
class Lead(Objective):
    """z_t - z_y for labels in pairs (y, t): positive where class t is ahead of class y."""

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The lead of each example; `y` has shape [n, 2]."""
        own, target = outputs.gather(1, y).unbind(1)
        return target - own


def to_hyperplane(x: Tensor, slope: Tensor, change: Tensor, norm: str, bounds: tuple[float, float]) -> Tensor:
    """The shortest step d with <slope, d> = change for which x + d stays in the box; [n, size] each.

    If no point of the box reaches the plane, the step goes to the corner nearest to it. A coordinate moves along the
    sign of its slope, by t in linf, t |slope| in l2, until it has no more room; in l1 one after the other, the steepest
    first. So the gain is piecewise linear in t, and sorting its kinks finds t.
    """
    slope = slope * torch.where(change < 0, -1.0, 1.0).to(slope)[:, None]
    needed, size = change.abs()[:, None], slope.abs()
    room = torch.where(slope > 0, bounds[1] - x, x - bounds[0]).clamp_min(0)
    if norm == "l1":
        order = size.argsort(dim=1, descending=True, stable=True)
        gain = (size * room).nan_to_num(0).gather(1, order)
        left = (needed - (gain.cumsum(1) - gain)).clamp_min(0)
        used = torch.where(left >= gain, room.gather(1, order), left / size.gather(1, order).clamp_min(_tiny(size)))
        length = torch.zeros_like(size).scatter(1, order, used)
    else:
        speed = torch.ones_like(size) if norm == "linf" else size
        length = torch.minimum(speed * _level(speed * size, room / speed.clamp_min(_tiny(size)), needed), room)
    return torch.where(size > 0, slope.sign() * length, 0)


def _level(rate: Tensor, kink: Tensor, needed: Tensor) -> Tensor:
    """The smallest t with sum_i rate_i min(t, kink_i) >= needed; infinite if there is none, [n, 1]."""
    kink = torch.where(rate > 0, kink, torch.inf)
    kink, order = kink.sort(dim=1, stable=True)
    rate = rate.gather(1, order)
    before = torch.cat([torch.zeros_like(kink[:, :1]), kink[:, :-1]], 1)
    running = rate.flip(1).cumsum(1).flip(1)  # of the coordinates that still move on this piece
    gained = (running * (kink - before)).nan_to_num(0, posinf=torch.inf).cumsum(1)
    piece = (gained < needed).sum(1, keepdim=True)
    reached = torch.cat([torch.zeros_like(gained[:, :1]), gained], 1).gather(1, piece)
    last = piece.clamp_max(kink.shape[1] - 1)
    level = before.gather(1, last) + (needed - reached) / running.gather(1, last).clamp_min(_tiny(rate))
    return torch.where(piece < kink.shape[1], level, torch.inf)


def _tiny(x: Tensor) -> float:
    return torch.finfo(x.dtype).tiny
