"""NES: gradients from antithetic Gaussian directions (Ilyas et al., 2018)."""

from dataclasses import dataclass

import torch

from advbnn.attacks.blackbox import Search
from advbnn.attacks.finite_differences import FiniteDifferences
from advbnn.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class NES(FiniteDifferences):
    """g = mean_i s_i u_i with u_i ~ N(0, I): the gradient of E f(x + sigma u), followed as in PGD.

    Args:
        momentum: weight of the past estimates.
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ArgumentError(f"momentum must lie in [0, 1), got {self.momentum}")

    def _search(self, search: Search) -> None:
        point, ball = search.x, self.threat.around(search.x)
        gradient = torch.zeros_like(point, dtype=torch.promote_types(point.dtype, torch.float32))
        for _ in self._steps(search, self.directions):
            gradient = self.momentum * gradient
            for _ in range(self.directions):
                u = search.oracle.randn(*point.shape[1:])
                gradient += self._slope(search, point, u) * u
            point = self._step(search, ball, point, ball.direction(gradient, point))
