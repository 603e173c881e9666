"""An adaptive attack on uncertainty-based detection: misclassified and confident at the same time."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from advbnn.attacks.losses import Objective
from advbnn.attacks.pgd import PGD
from advbnn.attacks.uncertainty import entropy
from advbnn.errors import within


@dataclass(frozen=True, kw_only=True)
class Evasion(Objective):
    """log p(j*) - lambda H(p) [argmax p != y], with j* the most likely wrong class.

    Cross-entropy only moves away from class y, often to a point between several classes. The entropy H counts only
    once the example is misclassified; before that it would keep the example in its own class. lambda is `weight`.
    """

    weight: float = 1.0

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        log_p = outputs.log_softmax(1)
        wrong = log_p.scatter(1, y[:, None], -torch.inf).amax(1)
        return wrong - self.weight * torch.where(log_p.argmax(1) != y, entropy(outputs), 0)


@dataclass(frozen=True, kw_only=True)
class EvasivePGD(PGD):
    """PGD on the `Evasion` objective of the mean probability.

    The entropy of the mean probability is the predictive entropy, the usual detection score. It is the sum of the
    expected entropy and the mutual information, so that both decrease with it. `weight` is lambda, in [0, inf).
    """

    loss: str = field(default="ce", init=False, repr=False)
    targeted: bool = field(default=False, init=False, repr=False)
    average: str = "probability"
    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        within("weight", self.weight, "[0, 1e30]")

    @property
    def objective(self) -> Objective:
        return Evasion(average=self.average, weight=self.weight)
