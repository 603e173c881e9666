"""Adam's moment estimates, for the attacks that step with them: C&W, SPSA and ZOO."""

import torch
from torch import Tensor

BETA_1, BETA_2 = 0.9, 0.999


class AdamMoments:
    """Running means of a gradient and of its square, corrected for their start at zero (Kingma and Ba, 2015)."""

    def __init__(self, like: Tensor) -> None:
        self._mean, self._square = torch.zeros_like(like), torch.zeros_like(like)
        self._count: int | Tensor = 0

    def update(self, gradient: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Add a gradient and return the corrected mean and mean square; only `known` coordinates change."""
        mean = torch.lerp(gradient, self._mean, BETA_1)
        square = torch.lerp(gradient**2, self._square, BETA_2)
        if known is None:
            self._count += 1
            self._mean, self._square = mean, square
            return mean / (1 - BETA_1**self._count), square / (1 - BETA_2**self._count)
        self._count = self._count + known.to(mean)
        self._mean, self._square = torch.where(known, mean, self._mean), torch.where(known, square, self._square)
        count = self._count.clamp_min(1)
        return self._mean / (1 - BETA_1**count), self._square / (1 - BETA_2**count)
