"""Backward pass differentiable approximation: an attack through the gradient of a stand-in (Athalye et al., 2018)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from advbnn.attacks.base import Attack, AttackResult
from advbnn.attacks.straight_through import replaced_backward
from advbnn.attacks.threat import Threat
from advbnn.errors import ArgumentTypeError


@dataclass(frozen=True)
class BPDA:
    """An attack through the gradient of `backward` in place of that of the network, or of its part `of`.

    `BPDA(attack, backward=surrogate)` differentiates a whole-network stand-in, which returns logits.
    `BPDA(attack, backward=lambda x: x, of=model[0])` passes gradients through a preprocessing step unchanged. All
    forward values stay those of the network. A part with a method `straight_through` needs no `BPDA`; see the module
    of that name.
    """

    attack: Attack
    backward: Callable[[Tensor], Tensor]
    of: nn.Module | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.backward):
            raise ArgumentTypeError(f"backward must be a module or a function of x, got {self.backward!r}")

    @property
    def threat(self) -> Threat:
        """The allowed perturbations."""
        return self.attack.threat

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
        """Perturbed inputs for `model`."""
        return self.run(model, x, y, seed).x_adv

    def run(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> AttackResult:
        """As calling it, with the number of queries."""
        with replaced_backward(model if self.of is None else self.of, self.backward):
            return self.attack.run(model, x, y, seed)
