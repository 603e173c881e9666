"""The objective as a value: the robust ELBO of eq. 13 and its options."""

from dataclasses import dataclass

from advbnn.bayes.likelihoods import Categorical, Likelihood
from advbnn.defenses.schedules import KL_WARMUPS
from advbnn.errors import ArgumentError, unknown

SCOPES = ("all", "classifier")


@dataclass(frozen=True, kw_only=True)
class RobustELBO:
    """-(1/N) sum_i log p(y_i | x_i^adv, w) + (alpha / N) KL(q(w) || p(w)), with w ~ q (eq. 13).

    A network without random weights has no divergence, and what is left is adversarial training (eq. 4), or plain
    training where nothing perturbs the data.

    Args:
        likelihood: `Categorical` or `Gaussian`.
        alpha: the weight of the divergence, in (0, 1]; 1 is the evidence lower bound itself.
        kl_scope: `"all"` random weights, or only those of the `"classifier"`; see `kl_divergence`.
        draws: weight draws that the likelihood of one update is averaged over.
        kl_warmup: how the weight of the divergence grows: `"constant"`, `"linear"` or `"blundell"`; see `kl_factor`.
        kl_warmup_epochs: the length of the linear rise.
        trades: beta. If given, the data term is -log p(y | x, w) + beta KL(p(. | x, w) || p(. | x^adv, w)), and x^adv
            maximises that divergence instead of the loss (Zhang et al., 2019).
    """

    likelihood: Likelihood = Categorical()
    alpha: float = 1.0
    kl_scope: str = "all"
    draws: int = 1
    kl_warmup: str = "constant"
    kl_warmup_epochs: float = 1.0
    trades: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ArgumentError(f"alpha must lie in (0, 1], got {self.alpha}; 1 is the evidence lower bound itself")
        if self.kl_scope not in SCOPES:
            raise unknown("kl_scope", self.kl_scope, SCOPES)
        if self.draws < 1:
            raise ArgumentError(f"draws must be at least 1, got {self.draws}")
        if self.kl_warmup not in KL_WARMUPS:
            raise unknown("kl_warmup", self.kl_warmup, KL_WARMUPS)
        if not self.kl_warmup_epochs > 0:
            raise ArgumentError(f"kl_warmup_epochs must be positive, got {self.kl_warmup_epochs}")
        if self.trades is not None and not self.trades > 0:
            raise ArgumentError(f"trades must be a positive beta such as 6.0, or None, got {self.trades}")
