"""ZOO: gradients one coordinate at a time, followed by Adam (Chen et al., 2017)."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from advbnn.attacks.adam import AdamMoments
from advbnn.attacks.blackbox import Search
from advbnn.attacks.finite_differences import FiniteDifferences, adam_direction


@dataclass(frozen=True, kw_only=True)
class ZOO(FiniteDifferences):
    """g_i = (f(x + sigma e_i) - f(x - sigma e_i)) / (2 sigma) for random coordinates i, each with its own moments.

    A step moves every coordinate along its current moments. The distance to x is bounded by projection, as in all
    attacks here, not by a penalty.

    Args:
        directions: coordinates estimated per step; all of them if an input has fewer.
    """

    directions: int = 128

    def _search(self, search: Search) -> None:
        point, ball = search.x, self.threat.around(search.x)
        zeros = torch.zeros_like(point, dtype=torch.promote_types(point.dtype, torch.float32))
        size = zeros[0].numel()
        moments, count = AdamMoments(zeros), min(self.directions, size)
        for _ in self._steps(search, count):
            chosen = search.oracle.rand(size).topk(count).indices
            gradient, known = zeros.clone(), torch.zeros_like(zeros, dtype=torch.bool)
            for coordinate in chosen.T:
                u = functional.one_hot(coordinate, size).to(zeros).view_as(zeros)
                gradient += self._slope(search, point, u) * u
                known |= u > 0
            point = self._step(search, ball, point, adam_direction(ball, point, *moments.update(gradient, known)))
