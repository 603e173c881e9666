"""Carlini and Wagner's attack: the smallest perturbation that changes the prediction (2017)."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from advbnn.attacks.adam import AdamMoments
from advbnn.attacks.base import Attack, like_rows
from advbnn.attacks.oracle import Oracle
from advbnn.errors import ArgumentError, positive_whole, within

_SHRINK = 0.9


@dataclass(frozen=True, kw_only=True)
class CW(Attack):
    """Minimise |x' - x|^2 + c max(kappa - margin(x'), 0) over x' = tanh(w) in the box, by Adam.

    c is searched for each example: multiplied by ten until the attack succeeds, then bisected. In linf the distance
    is sum_i max(|x'_i - x_i| - tau, 0), starting from tau = eps; each success sets tau to 0.9 of the distance reached.

    On a random network success is measured by the mean prediction over the selection samples. The nearest success is
    returned, projected into the ball. For the smallest perturbation of any size use `eps=math.inf`. `search_steps`
    values of c are tried, with `steps` Adam steps each; `confidence` is kappa.
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
        positive_whole("steps", self.steps)
        positive_whole("search_steps", self.search_steps)
        within("first_c", self.first_c, "(0, 1e30]")
        within("learning_rate", self.learning_rate, "(0, 1e6]")
        within("confidence", self.confidence, "[0, 1e30]")
        if self.threat.norm == "l1":
            raise ArgumentError("CW measures distance in norm 'l2' or 'linf', got 'l1'; use PGD or APGD")
        if not all(map(math.isfinite, self.threat.bounds)):
            raise ArgumentError(f"CW maps the real line onto the box, which must be finite; got {self.threat.bounds}")

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        tanh_space = _TanhSpace(x, self.threat.bounds)
        nearest, distance = x, torch.full((len(x),), torch.inf, dtype=torch.float64, device=x.device)
        # multiplied by ten at every failure, c soon leaves the range of float16
        failed = torch.zeros(len(x), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        succeeded = torch.full_like(failed, torch.inf)
        c = torch.full_like(failed, self.first_c)
        tau = torch.full_like(failed, min(self.threat.eps, self.threat.bounds[1] - self.threat.bounds[0]))
        for search in range(self.search_steps):
            w, moments = tanh_space.start, AdamMoments(tanh_space.start)
            reached = torch.zeros_like(c, dtype=torch.bool)
            for step in range(self.steps):
                x_adv = tanh_space.to_box(w)
                loss = oracle.gradient(x_adv, y, self.objective, self.eot)
                now = self.threat.distance(x_adv, x)
                candidate = (loss.values > self.confidence) & (~reached | (now < distance))
                success = self._confirmed(oracle, x_adv, y, candidate)
                reached = reached | success
                nearer = success & (now < distance)
                nearest = torch.where(like_rows(nearer, x), x_adv, nearest)
                distance = torch.where(nearer, now, distance)
                push = torch.where(loss.values < self.confidence, c, 0)
                gradient = self._distance_gradient(x_adv - x, tau) - like_rows(push, x) * loss.gradient
                mean, square = moments.update(gradient * tanh_space.slope(w))
                w = w - self.learning_rate * mean / (square.sqrt() + 1e-8)
                oracle.report(search * self.steps + step + 1, self.search_steps * self.steps)
            failed = torch.where(reached, failed, c)
            if self.threat.norm == "l2":
                succeeded = torch.where(reached, c, succeeded)
                c = torch.where(succeeded.isinf(), 10 * c, (failed + succeeded) / 2)
            else:
                c = torch.where(reached, c, 10 * c)
                tau = torch.where(reached, torch.minimum(tau, _SHRINK * distance.to(tau)), tau)
        return torch.where(like_rows(distance.isinf(), x), x_adv, nearest)

    def _confirmed(self, oracle: Oracle, x_adv: Tensor, y: Tensor, candidate: Tensor) -> Tensor:
        """Which candidates succeed by two standard errors on the selection samples, [n].

        The nearest of many points is kept, and without this test it would be the one most favoured by the samples.
        """
        if not oracle.random:
            return candidate
        active = candidate.nonzero().squeeze(1)
        if len(active) == 0:
            return candidate
        y, objective, samples = y[active], oracle.selection_objective, self.selection_samples
        loss = oracle.selection_loss(x_adv[active], y, objective, samples, active=active)
        return torch.zeros_like(candidate).index_copy_(0, active, oracle.succeeds(loss.prediction, y, samples))

    def _distance_gradient(self, delta: Tensor, tau: Tensor) -> Tensor:
        if self.threat.norm == "l2":
            return 2 * delta
        return torch.where(delta.abs() > like_rows(tau, delta), delta.sign(), 0)


class _TanhSpace:
    """The change of variables x' = low + (high - low) (1 + tanh w) / 2, which maps every w into the box."""

    def __init__(self, x: Tensor, bounds: tuple[float, float]) -> None:
        self._dtype = x.dtype
        self._middle, self._half = (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        # the edge of the box lies at infinity, so the start is moved inwards a little
        self.start = ((x - self._middle) / self._half * (1 - 1e-6)).atanh()

    def to_box(self, w: Tensor) -> Tensor:
        return (self._middle + self._half * w.tanh()).to(self._dtype)

    def slope(self, w: Tensor) -> Tensor:
        """dx'/dw."""
        return self._half * (1 - w.tanh().square())
