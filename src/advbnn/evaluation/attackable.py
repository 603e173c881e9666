"""Any classifier in a form that every attack can be tried on, whatever it does to its outputs and gradients."""

from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.prediction import are_probabilities
from advbnn.fast.acceleration import accelerate
from advbnn.modules import evaluating
from advbnn.randomness import seeded


class Attackable(nn.Module):
    """`model` with logits for outputs, and with gradients that exist and are finite.

    Probabilities become their logarithms, whose softmax they are. A gradient that autograd does not know, as of a
    network that rounds its input, and one that is NaN or infinite becomes 0. Attacks then run to their end without
    breaking the network, which can be compared with attacks that need no gradient.

    Args:
        model: the classifier.
        returns_probabilities: it returns these instead of logits.
    """

    def __init__(self, model: nn.Module, returns_probabilities: bool = False) -> None:
        super().__init__()
        self.model, self.returns_probabilities = model, returns_probabilities
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        """Logits with finite gradients."""
        return self.logits(_FiniteGradient.apply(x))

    def logits(self, x: Tensor) -> Tensor:
        """Logits with the gradients that the model has; zero where it has none."""
        outputs: Tensor = self.model(x)
        if self.returns_probabilities:
            outputs = outputs.clamp_min(torch.finfo(outputs.dtype).tiny).log()
        if x.requires_grad and torch.is_grad_enabled():
            # adds zero, so that there is a gradient to be asked for
            outputs = outputs + 0 * x.reshape(len(x), -1).sum(1, keepdim=True)
        return outputs


@torch.no_grad()
def attackable(model: nn.Module, x: Tensor) -> Attackable:
    """`model` made attackable, after a look at what it returns for a few inputs `x`."""
    with evaluating(model), seeded(0, x.device):
        outputs: Any = model(x)
    return Attackable(model, isinstance(outputs, Tensor) and bool(are_probabilities(outputs)))


def accelerated(model: nn.Module, engine: str = "auto", precision: str = "full") -> nn.Module:
    """`accelerate(model)`; of an `Attackable`, the network within, whose structure the fast engine knows."""
    if isinstance(model, Attackable):
        return Attackable(accelerate(model.model, engine, precision), model.returns_probabilities)
    return accelerate(model, engine, precision)


class _FiniteGradient(torch.autograd.Function):
    """The identity, whose gradient has 0 for what is NaN or infinite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
