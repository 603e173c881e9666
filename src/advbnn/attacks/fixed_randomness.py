"""The attacker knows the seed: PGD on the very ensemble of weight samples that is deployed."""

from dataclasses import dataclass

from torch import Tensor, nn

from advbnn.attacks.base import AttackResult
from advbnn.attacks.pgd import PGD
from advbnn.bayes.prediction import Ensemble
from advbnn.errors import ArgumentError, positive_whole
from advbnn.randomness import check_seed


@dataclass(frozen=True, kw_only=True)
class FixedRandomness(PGD):
    """PGD on `Ensemble(model, samples, ensemble_seed)`, the deployed classifier with its random numbers known.

    The ensemble is a deterministic network, so that neither EOT nor selection samples are used. The result says what
    the secrecy of the seed is worth; it is no attack on the random classifier, and not part of an audit's worst case.
    Evaluations put in their own `samples` and the seed by which they score. A gradient keeps the activations of all
    samples.
    """

    steps: int = 100
    pick: str = "best"
    samples: int = 20
    ensemble_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_whole("samples", self.samples)
        check_seed(self.ensemble_seed, "ensemble_seed")
        if not self.objective.classifies:
            raise ArgumentError("FixedRandomness attacks an ensemble of classifiers, got loss='nll'; use PGD")

    def run(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> AttackResult:
        """As calling the attack, with the number of queries, each to the whole ensemble."""
        known = Ensemble(model, self.samples, self.ensemble_seed, exact_up_to=0)  # these samples, not all members
        return super().run(known, x, y, seed)
