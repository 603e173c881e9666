"""Transfer attacks: perturbations crafted on one network and used against another."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from advbnn.attacks.base import Attack, AttackResult
from advbnn.attacks.threat import Threat
from advbnn.bayes.protocol import posterior_mean
from advbnn.errors import ArgumentError


@dataclass(frozen=True)
class Transfer:
    """An attack on `source` that is called on any target: `Transfer(source, attack)(target, x, y)`."""

    source: nn.Module = field(repr=False)
    attack: Attack

    @classmethod
    def from_mean(cls, bnn: nn.Module | None, attack: Attack) -> "Transfer":
        """Craft on the posterior-mean network, which is deterministic, so that noise cannot mask its gradients."""
        mean = None if bnn is None else posterior_mean(bnn)
        if mean is None:
            came = type(bnn).__name__
            remedy = "use 'pgd', or in Python Transfer(source, attack)"
            raise ArgumentError(f"attack 'mean' needs a Bayesian network, got {came}; {remedy}")
        return cls(mean, attack)

    @property
    def threat(self) -> Threat:
        """The allowed perturbations."""
        return self.attack.threat

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
        """Perturbed inputs for `model`, which is not queried."""
        return self.run(model, x, y, seed).x_adv

    def run(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> AttackResult:
        """As calling it, with the queries to the source."""
        return self.attack.run(self.source, x, y, seed)
