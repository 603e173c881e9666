"""Transfer attacks: perturbations crafted on one network and used against another."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from advbnn.attacks.base import Attack, AttackResult
from advbnn.attacks.threat import Threat
from advbnn.bayes.protocol import posterior_mean
from advbnn.errors import ArgumentTypeError


@dataclass(frozen=True)
class Transfer:
    """An attack on `source` that is called on any target: `Transfer(source, attack)(target, x, y)`.

    Args:
        source: the network that the perturbations are crafted on.
        attack: how it is attacked.
    """

    source: nn.Module = field(repr=False)
    attack: Attack

    @classmethod
    def from_mean(cls, bnn: nn.Module, attack: Attack) -> "Transfer":
        """Craft on the posterior-mean network, which is deterministic, so that noise cannot mask its gradients."""
        mean = posterior_mean(bnn)
        if mean is None:
            raise ArgumentTypeError(
                f"bnn must be a Bayesian network, got {type(bnn).__name__}; another source: Transfer(source, attack)"
            )
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
        if not isinstance(model, nn.Module):
            raise ArgumentTypeError(f"model must be a torch.nn.Module that returns logits, got {type(model).__name__}")
        return self.attack.run(self.source, x, y, seed)
