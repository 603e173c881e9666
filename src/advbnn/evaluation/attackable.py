"""Any classifier in a form that every attack can run on: logits as outputs, finite gradients."""

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.outputs import are_probabilities
from advbnn.bayes.protocol import EXACT_UP_TO, HasMembers, Member, members, posterior_mean
from advbnn.errors import ArgumentError
from advbnn.fast.acceleration import accelerate
from advbnn.modules import evaluating, input_unchanged
from advbnn.randomness import seeded, with_fresh_state

_USUAL = 0.5, 50.0
"""The lead of the largest logit over the next, for a typical image, of networks that attacks are made for."""

_TYPICAL = 5.0


class Attackable(HasMembers):
    """`model` with logits as outputs and gradients that exist and are finite.

    Probabilities become their logarithms. A gradient that does not exist, as of a network that rounds its input, or
    that is NaN or infinite becomes 0. Gradient attacks then run without an error, fail to break the network, and can be
    compared with attacks that need no gradient.

    Attributes:
        known_random: whether the network is known to be random; None leaves it to each attack to find out.
        lead: by how much the largest logit of a typical image leads the next; 1 if it was not measured.
    """

    known_random: bool | None = None
    lead: float = 1.0

    def __init__(self, model: nn.Module, returns_probabilities: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.model, self.returns_probabilities, self.scale = model, returns_probabilities, scale
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
        return tuple(Member(one.weight, Attackable(one.net, self.returns_probabilities, self.scale)) for one in found)

    @functools.cached_property
    def rescaled(self) -> "Attackable | None":
        """The network with logits of a usual size; None if they have it, or no size at all.

        The gradient of the cross-entropy vanishes for large logits, and for small ones it ignores which of the other
        classes is the likeliest. Neither makes a classifier more robust.
        """
        if not 0 < self.lead < math.inf or _USUAL[0] <= self.lead <= _USUAL[1]:
            return None
        other = Attackable(self.model, self.returns_probabilities, _TYPICAL / self.lead)
        other.known_random = self.known_random
        return other

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
        if self.scale != 1:
            outputs = self.scale * outputs
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
    with evaluating(model), seeded(0, x.device), input_unchanged(x):
        # within the block, as members may be copies in the mode of the model
        nets = [one.net for one in members(model, EXACT_UP_TO)] or [model]
        of_nets: list[Any] = [net(x) for net in nets]
    outputs = of_nets[0]
    scores = [isinstance(one, Tensor) and one.ndim == 2 and bool(are_probabilities(one)) for one in of_nets]
    if any(scores) and not all(scores):
        raise ArgumentError(
            "model has networks that return probabilities and others that return logits; take logits of all"
        )
    found = Attackable(model, all(scores))
    if isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] > 1:
        logits = outputs.log() if found.returns_probabilities else outputs
        first, second = logits.double().topk(2).values.unbind(1)
        found.lead = (first - second).nanmedian().item()
    return found


def inside(model: nn.Module) -> nn.Module:
    """The network of an `Attackable`, of which there may be several, or the model itself."""
    return model.model if isinstance(model, Attackable) else model


def accelerated(model: nn.Module, engine: str = "auto", precision: str = "full", **how: Any) -> nn.Module:
    """`accelerate(model, ...)`; of an `Attackable`, the network inside, whose structure the fast engine knows."""
    if isinstance(model, Attackable):
        fast = Attackable(accelerate(model.model, engine, precision, **how), model.returns_probabilities, model.scale)
        fast.known_random = model.known_random
        return fast
    return accelerate(model, engine, precision, **how)
