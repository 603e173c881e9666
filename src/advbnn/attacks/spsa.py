"""SPSA: gradients from directions of random signs, followed by Adam (Spall, 1992; Uesato et al., 2018)."""

from dataclasses import dataclass

import torch

from advbnn.attacks.adam import AdamMoments
from advbnn.attacks.blackbox import Search
from advbnn.attacks.finite_differences import FiniteDifferences, adam_direction


@dataclass(frozen=True, kw_only=True)
class SPSA(FiniteDifferences):
    """g = mean_i s_i u_i with random signs u_i in {-1, 1}^d, for which 1 / u = u; projected Adam steps."""

    def _search(self, search: Search) -> None:
        point, ball = search.x, self.threat.around(search.x)
        zeros = torch.zeros_like(point, dtype=torch.promote_types(point.dtype, torch.float32))
        moments, everywhere = AdamMoments(zeros), torch.ones_like(point, dtype=torch.bool)
        for _ in self._steps(search, self.directions):
            gradient = zeros.clone()
            for _ in range(self.directions):
                u = search.oracle.rand(*point.shape[1:]).sub_(0.5).sign_()
                gradient += self._slope(search, point, u) * u
            direction = adam_direction(ball, point, *moments.update(gradient / self.directions, everywhere))
            point = self._step(search, ball, point, direction)
