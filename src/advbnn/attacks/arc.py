"""ARC: fool the members of a randomized ensemble one after the other (Dbouk and Shanbhag, 2022)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from advbnn.attacks.base import Attack, like_rows
from advbnn.attacks.gradient import Network
from advbnn.attacks.oracle import Oracle
from advbnn.errors import ArgumentError, positive_whole, within

_OVERSHOOT = 0.05
_EQUAL = 1e-9  # two sums of the same weights


@dataclass(frozen=True, kw_only=True)
class ARC(Attack):
    """Minimise the expected accuracy sum_i w_i [f_i(x + d) = y] of a classifier that picks a member i at random.

    The gradient of a mean loss may point where few members err, or vanish. ARC keeps a perturbation d and makes, in
    each step, a local one u of length eta, member by member. For a member that is still right at x + d + u, let zeta be
    the distance from x + d to its nearest linearised boundary, in the norm of the threat, with normal -h and steepest
    step g. u moves along g by

        beta = eta (zeta - <h, u>) / (eta - zeta) + rho,

    just enough that the member errs after u is scaled back to length eta (beta = eta for the first, or if zeta >= eta).
    A move is kept if the expected accuracy does not rise. Members come in the order of falling weight first, and in
    random orders in later steps. Published code measures zeta from x + d + u; in the formula it belongs to x + d.

    Args:
        members: weight samples that stand for the posterior, drawn once. A posterior with finite support, and not many
            more `members` than that, has its own.
        classes: the likeliest other classes whose boundaries are considered; all when None. A pass costs one
            backward pass for each, and one more.
        step_size: eta; eps in linf and eps / 4 in l2 when None.
    """

    loss: str = field(default="margin", init=False, repr=False)
    steps: int = 20
    members: int = 20
    classes: int | None = None
    step_size: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_whole("steps", self.steps)
        positive_whole("members", self.members)
        if self.classes is not None:
            positive_whole("classes", self.classes)
        if self.threat.norm == "l1":
            raise ArgumentError("ARC is for norm 'linf' or 'l2', got 'l1'; use PGD or APGD")
        if self.step_size is not None:
            within("step_size", self.step_size, "(0, 1e30]")
        if not math.isfinite(self.eta):
            raise ArgumentError("step_size is required when eps is infinite")

    @property
    def eta(self) -> float:
        """The length of a step."""
        if self.step_size is not None:
            return self.step_size
        return self.threat.eps if self.threat.norm == "linf" else self.threat.eps / 4

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        weights, networks = oracle.members(self.members)
        ball, point = self.threat.around(x), x
        accuracy = self._accuracy(networks, weights, point, y)
        for step in range(self.steps):
            order = list(range(len(networks))) if step == 0 else torch.randperm(len(networks)).tolist()
            start, local = point, torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
            for number in order:
                moved = self._moved(oracle, networks[number], start, local, y)
                candidate = ball.project((start + moved).to(x.dtype))
                found = self._accuracy(networks, weights, candidate, y)
                kept = found <= accuracy + _EQUAL
                local = torch.where(like_rows(kept, x), moved, local)
                point = torch.where(like_rows(kept, x), candidate, point)
                accuracy = torch.where(kept, found, accuracy)
            oracle.report(step + 1, self.steps)
            if not bool((accuracy > _EQUAL).any()):
                break
        return point

    def _accuracy(self, networks: Sequence[Network], weights: Sequence[float], x: Tensor, y: Tensor) -> Tensor:
        """The probability that a random member resists, [n]."""
        with torch.no_grad():
            return sum(
                (
                    weight * self._resists(network(x), y).double()
                    for weight, network in zip(weights, networks, strict=True)
                ),
                torch.zeros(len(x), dtype=torch.float64, device=x.device),
            )

    def _resists(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.argmax(1) == y) != self.targeted

    def _moved(self, oracle: Oracle, network: Network, start: Tensor, local: Tensor, y: Tensor) -> Tensor:
        """`local`, moved across the nearest boundary of a network, where this still resists."""
        at = (start + local).clamp(*self.threat.bounds).to(start.dtype)
        chosen = oracle.logit_gradients(network, at, lambda logits: self._compared(logits, y))
        own, *others = chosen.gradients.to(local.dtype)
        values = chosen.logits.to(local.dtype).gather(1, chosen.classes)
        nearest = torch.full((len(start),), torch.inf, dtype=local.dtype, device=start.device)
        normal = torch.zeros_like(local)
        order = 1 if self.threat.norm == "linf" else 2
        for gradient, value in zip(others, values.T[1:], strict=True):
            slope = gradient - own
            length = torch.linalg.vector_norm(slope.flatten(1), order, dim=1)
            # none behind a class that is impossible, and none without a slope
            distance = torch.where(length > 0, (values[:, 0] - value) / length, torch.inf).nan_to_num(torch.inf)
            nearer = distance < nearest
            nearest = torch.where(nearer, distance, nearest)
            normal = torch.where(like_rows(nearer, slope), slope / like_rows(length, slope), normal)
        along = (normal * local).flatten(1).sum(1)
        # `nearest` was measured at x + d + u, and the boundary lies straight ahead
        zeta = nearest + along
        step = self.eta * nearest / (self.eta - zeta) + _OVERSHOOT * self.threat.eps
        first = local.flatten(1).abs().amax(1) == 0
        step = torch.where(first | (zeta >= self.eta), self.eta, step)
        direction = normal.sign() if self.threat.norm == "linf" else normal
        moved = local + like_rows(step, local) * direction
        length = torch.linalg.vector_norm(moved.flatten(1), math.inf if order == 1 else 2, dim=1)
        moved = moved * like_rows(self.eta / length.clamp_min(torch.finfo(moved.dtype).tiny), moved)
        pushed = self._resists(chosen.logits, y) & nearest.isfinite()
        return torch.where(like_rows(pushed, local), moved, local)

    def _compared(self, logits: Tensor, y: Tensor) -> Tensor:
        """The predicted class and those whose boundaries are considered, [n, k]."""
        if self.targeted:
            return torch.stack([logits.argmax(1), y], 1)
        others = logits.shape[1] - 1
        return logits.topk(1 + min(self.classes or others, others), dim=1).indices
