"""ZOO: gradients coordinate by coordinate, followed by Adam (Chen et al., 2017)."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from advbnn.attacks.blackbox import Search
from advbnn.attacks.finite_differences import Adam, FiniteDifferences


@dataclass(frozen=True, kw_only=True)
class ZOO(FiniteDifferences):
    """g_i = (f(x + sigma e_i) - f(x - sigma e_i)) / (2 sigma) for random coordinates i, each with moments of its own.

    A step moves every coordinate along the moments that it has by now. The distance to x is held by projection, as
    in all attacks here, not by a penalty.

    Args:
        directions: coordinates asked about in a step; all of them where an input has fewer.
    """

    directions: int = 128

    def _search(self, search: Search) -> None:
        point, ball = search.x, self.threat.around(search.x)
        wide = torch.zeros_like(point, dtype=torch.promote_types(point.dtype, torch.float32))
        size = wide[0].numel()
        adam, count = Adam(wide), min(self.directions, size)
        for _ in self._steps(search, count):
            chosen = search.oracle.rand(size).topk(count).indices
            gradient, asked = torch.zeros_like(wide), torch.zeros_like(wide)
            for coordinate in chosen.T:
                u = functional.one_hot(coordinate, size).to(wide).view_as(wide)
                gradient += self._slope(search, point, u) * u
                asked += u
            adam.see(gradient, asked > 0)
            point = self._step(search, ball, point, adam.direction(ball, point))
