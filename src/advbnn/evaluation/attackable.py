"""Any classifier in a form that every attack can run on: logits as outputs, finite gradients."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.prediction import are_probabilities
from advbnn.bayes.protocol import HasMembers, Member, members, posterior_mean
from advbnn.fast.acceleration import accelerate
from advbnn.modules import evaluating
from advbnn.randomness import seeded, with_fresh_state


class Attackable(HasMembers):
    """`model` with logits as outputs and gradients that exist and are finite.

    Probabilities become their logarithms. A gradient that does not exist, as of a network that rounds its input, or
    that is NaN or infinite becomes 0. Gradient attacks then run without an error, fail to break the network, and can be
    compared with attacks that need no gradient.

    Attributes:
        known_random: whether the network is known to be random; None leaves it to each attack to find out.
    """

    known_random: bool | None = None

    def __init__(self, model: nn.Module, returns_probabilities: bool = False) -> None:
        super().__init__()
        self.model, self.returns_probabilities = model, returns_probabilities
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        """Logits with finite gradients."""
        if x.requires_grad and torch.is_grad_enabled():
            x = x.view_as(x)
            x.register_hook(lambda gradient: torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0))
        return self.logits(x)

    @property
    def support(self) -> int:
        return self.model.support if isinstance(self.model, HasMembers) else 0

    def members(self) -> tuple[Member, ...]:
        found = members(self.model)
        return tuple(Member(one.weight, Attackable(one.net, self.returns_probabilities)) for one in found)

    @functools.cached_property
    def mean(self) -> "Attackable | None":
        """The posterior-mean network, if there is one; the same object each time, so that it is accelerated once."""
        found = posterior_mean(self.model)
        return None if found is None else Attackable(found, self.returns_probabilities)

    def logits(self, x: Tensor) -> Tensor:
        """Logits with the gradients of the model; zero where it has none."""
        outputs: Tensor = self.model(x)
        if self.returns_probabilities:
            outputs = outputs.clamp_min(torch.finfo(outputs.dtype).tiny).log()
        if x.requires_grad and torch.is_grad_enabled():
            # adds zero, so that the gradient exists
            outputs = outputs + 0 * x.reshape(len(x), -1).sum(1, keepdim=True)
        return outputs


@torch.no_grad()
def attackable(model: nn.Module, x: Tensor) -> Attackable:
    """`model` as an `Attackable`, after a forward pass on a few inputs `x` shows what it returns.

    If it keeps its random state between passes and offers `resample(seed)`, every pass draws a fresh state.
    """
    model = with_fresh_state(model)
    with evaluating(model), seeded(0, x.device):
        outputs: Any = model(x)
    return Attackable(model, isinstance(outputs, Tensor) and bool(are_probabilities(outputs)))


def accelerated(model: nn.Module, engine: str = "auto", precision: str = "full", **how: Any) -> nn.Module:
    """`accelerate(model, ...)`; of an `Attackable`, the network inside, whose structure the fast engine knows."""
    if isinstance(model, Attackable):
        fast = Attackable(accelerate(model.model, engine, precision, **how), model.returns_probabilities)
        fast.known_random = model.known_random
        return fast
    return accelerate(model, engine, precision, **how)
