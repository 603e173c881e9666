"""The gradient of any KL, or of any log prior, for a fast training step."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class PriorTerm:
    """The term `weight` times `value()` of a loss, differentiated by autograd.

    The closed-form KL of Gaussians does not need this: its gradient comes with that of the weight sample. Random
    numbers in `value`, such as those of a Monte Carlo estimate, are torch's.
    """

    def __init__(self, value: Callable[[], Tensor], parameters: Sequence[Tensor], weight: float) -> None:
        self._value, self._weight = value, weight
        self._parameters = [p for p in parameters if p.requires_grad]

    def add_gradient(self, factor: Tensor) -> Tensor:
        """Add `factor` times the gradient of the term to `.grad` of the parameters; returns the value."""
        with torch.enable_grad():
            value = self._value()
            term = value * factor * self._weight
            gradients = torch.autograd.grad(term, self._parameters, allow_unused=True)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return value.detach()
