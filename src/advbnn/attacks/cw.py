"""Carlini and Wagner's attack: the smallest perturbation that changes the prediction (2017)."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from advbnn.attacks.base import Attack, check_count, like_rows
from advbnn.attacks.oracle import Oracle
from advbnn.errors import ArgumentError

_SHRINK = 0.9
_BETA_1, _BETA_2 = 0.9, 0.999


@dataclass(frozen=True, kw_only=True)
class CW(Attack):
    """Minimise |x' - x|^2 + c max(kappa - margin(x'), 0) over x' = tanh(w) in the box, by Adam.

    c is searched for each example: tenfold until the attack succeeds, then halfway between the largest that failed
    and the smallest that succeeded. In linf the distance is sum_i max(|x'_i - x_i| - tau, 0), from tau = eps; each
    success sets tau to 0.9 of the distance reached.

    Success is judged on the mean prediction of the selection draws. The nearest success is returned, moved into the
    ball if it lies outside; for the smallest perturbation whatever its size, give the threat `eps=math.inf`.

    Args:
        steps: Adam steps for each c.
        search_steps: values of c tried.
        first_c: the first of them.
        learning_rate: of Adam, in w.
        confidence: kappa, the margin that the gradient pushes to.
    """

    loss: str = field(default="margin", init=False)
    average: str = "logits"
    steps: int = 1000
    search_steps: int = 9
    first_c: float = 1e-3
    learning_rate: float = 0.01
    confidence: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps)
        check_count("search_steps", self.search_steps)
        for name in ("first_c", "learning_rate"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{name} must be positive, got {getattr(self, name)}")
        if self.threat.norm == "l1":
            raise ArgumentError("CW measures distance in norm 'l2' or 'linf', got 'l1'; use PGD or APGD")
        if not all(map(math.isfinite, self.threat.bounds)):
            raise ArgumentError(f"CW maps the real line onto the box, which must be finite; got {self.threat.bounds}")

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        tanh_space = _TanhSpace(x, self.threat.bounds)
        nearest, distance = x, torch.full((len(x),), torch.inf, dtype=torch.float64, device=x.device)
        # tenfold at every failure, c soon leaves the range of float16
        failed = torch.zeros(len(x), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        succeeded = torch.full_like(failed, torch.inf)
        c = torch.full_like(failed, self.first_c)
        tau = torch.full_like(failed, min(self.threat.eps, self.threat.bounds[1] - self.threat.bounds[0]))
        for search in range(self.search_steps):
            w = _Adam(tanh_space.start, self.learning_rate)
            reached = torch.zeros_like(c, dtype=torch.bool)
            for step in range(self.steps):
                x_adv = tanh_space.to_box(w.value)
                slope = oracle.gradient(x_adv, y, self.objective, self.eot)
                now = self.threat.distance(x_adv, x)
                news = (slope.values > self.confidence) & (~reached | (now < distance))
                success = self._confirmed(oracle, x_adv, y, news)
                reached = reached | success
                nearer = success & (now < distance)
                nearest = torch.where(like_rows(nearer, x), x_adv, nearest)
                distance = torch.where(nearer, now, distance)
                push = torch.where(slope.values < self.confidence, c, 0)
                gradient = self._distance_gradient(x_adv - x, tau) - like_rows(push, x) * slope.gradient
                w.descend(gradient * tanh_space.slope(w.value))
                oracle.report(search * self.steps + step + 1, self.search_steps * self.steps)
            failed = torch.where(reached, failed, c)
            if self.threat.norm == "l2":
                succeeded = torch.where(reached, c, succeeded)
                c = torch.where(succeeded.isinf(), 10 * c, (failed + succeeded) / 2)
            else:
                c = torch.where(reached, c, 10 * c)
                tau = torch.where(reached, torch.minimum(tau, _SHRINK * distance.to(tau)), tau)
        return torch.where(like_rows(distance.isinf(), x), x_adv, nearest)

    def _confirmed(self, oracle: Oracle, x_adv: Tensor, y: Tensor, claimed: Tensor) -> Tensor:
        """Which of the claimed successes are also ones on the selection draws, beyond the luck of these, [n].

        Of many points the nearest one is kept, which would else be the one that these draws flatter most.
        """
        if not oracle.random:
            return claimed
        active = claimed.nonzero().squeeze(1)
        if len(active) == 0:
            return claimed
        objective = replace(self.objective, average="probability")
        answer = oracle.select(x_adv[active], y[active], objective, self.selection_samples, active=active)
        judged = oracle.succeeds(answer.prediction, y[active], self.selection_samples)
        return torch.zeros_like(claimed).index_copy_(0, active, judged)

    def _distance_gradient(self, delta: Tensor, tau: Tensor) -> Tensor:
        if self.threat.norm == "l2":
            return 2 * delta
        return torch.where(delta.abs() > like_rows(tau, delta), delta.sign(), 0)


class _TanhSpace:
    """The change of variables x' = low + (high - low) (1 + tanh w) / 2, under which every w is inside the box."""

    def __init__(self, x: Tensor, bounds: tuple[float, float]) -> None:
        self._dtype = x.dtype
        self._middle, self._half = (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        # the edge of the box lies at infinity, so a hair is left between it and the start
        self.start = ((x - self._middle) / self._half * (1 - 1e-6)).atanh()

    def to_box(self, w: Tensor) -> Tensor:
        return (self._middle + self._half * w.tanh()).to(self._dtype)

    def slope(self, w: Tensor) -> Tensor:
        """dx'/dw."""
        return self._half * (1 - w.tanh().square())


class _Adam:
    """Adam on one tensor (Kingma and Ba, 2015)."""

    def __init__(self, value: Tensor, learning_rate: float) -> None:
        self.value, self._rate, self._steps = value, learning_rate, 0
        self._mean, self._square = torch.zeros_like(value), torch.zeros_like(value)

    def descend(self, gradient: Tensor) -> None:
        self._steps += 1
        self._mean = torch.lerp(gradient, self._mean, _BETA_1)
        self._square = torch.lerp(gradient.square(), self._square, _BETA_2)
        mean = self._mean / (1 - _BETA_1**self._steps)
        square = self._square / (1 - _BETA_2**self._steps)
        self.value = self.value - self._rate * mean / (square.sqrt() + 1e-8)
