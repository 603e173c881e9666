"""Attacks on the uncertainty itself: make a network certain or uncertain, whatever class it predicts."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from advbnn.attacks.losses import Objective
from advbnn.attacks.pgd import PGD
from advbnn.errors import ArgumentError, one_of

SCORES = ("entropy", "mutual_information")
DIRECTIONS = ("lower", "raise")


def entropy(outputs: Tensor) -> Tensor:
    """-sum_c p_c log p_c of logits [..., classes], in nats, [...]; a class with a logit of -inf adds nothing."""
    log_p = outputs.log_softmax(-1)
    return -(log_p.exp() * log_p.masked_fill(log_p == -torch.inf, 0)).sum(-1)


@dataclass(frozen=True, kw_only=True)
class Uncertainty(Objective):
    """The entropy H(E p) of the mean probability, or the mutual information H(E p) - E H(p), to be raised or lowered.

    The mutual information is the disagreement of the weight samples. It is 0 for a deterministic network.
    """

    average: str = "probability"
    score: str = "entropy"
    direction: str = "raise"

    @property
    def sign(self) -> float:
        """1 to raise the score, -1 to lower it."""
        return 1.0 if self.direction == "raise" else -1.0

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The entropy of the mean, signed, [n]; the labels do not matter."""
        return self.sign * entropy(outputs)

    def of_sample(self, outputs: Tensor, y: Tensor) -> Tensor | float:
        """The entropy of one weight sample, which the mutual information subtracts."""
        return -self.sign * entropy(outputs) if self.score == "mutual_information" else 0.0


@dataclass(frozen=True, kw_only=True)
class UncertaintyPGD(PGD):
    """PGD on a score of uncertainty instead of a loss.

    `direction="lower"` makes a network overconfident: its errors pass a threshold on the score. `"raise"` makes it
    underconfident: it abstains from images that it classifies correctly. There is no success to select points by, so
    that it makes one run and returns its last point.

    Args:
        score: `"entropy"`, of the mean probability, or `"mutual_information"`, which needs `eot` of 2 or more.
        direction: `"lower"` or `"raise"`.
    """

    loss: str = field(default="ce", init=False, repr=False)
    targeted: bool = field(default=False, init=False, repr=False)
    average: str = field(default="probability", init=False, repr=False)
    restarts: int = field(default=1, init=False, repr=False)
    pick: str = field(default="last", init=False, repr=False)
    eot: int = 10
    score: str = "entropy"
    direction: str = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("score", self.score, SCORES)
        one_of("direction", self.direction, DIRECTIONS)
        if self.score == "mutual_information" and self.eot < 2:
            raise ArgumentError("score='mutual_information' compares weight samples; use eot of 2 or more, such as 10")

    @property
    def objective(self) -> Objective:
        return Uncertainty(score=self.score, direction=self.direction)
