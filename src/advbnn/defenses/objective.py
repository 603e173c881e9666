"""The objective as a value: the robust ELBO of eq. 13 and its options."""

from dataclasses import dataclass

from advbnn.bayes.likelihoods import Categorical, Likelihood
from advbnn.defenses.schedules import KL_WARMUPS
from advbnn.errors import ArgumentError, check_types, one_of, positive_whole, within

SCOPES = ("all", "classifier")


@dataclass(frozen=True, kw_only=True)
class RobustELBO:
    """-(1/N) sum_i log p(y_i | x_i^adv, w) + (alpha / N) KL(q(w) || p(w)), with w ~ q (eq. 13).

    Without random weights there is no KL, which leaves adversarial training (eq. 4), or plain training without an
    attack.

    Args:
        likelihood: `Categorical` or `Gaussian`.
        alpha: the weight of the KL, in (0, 1]; 1 is the evidence lower bound itself.
        kl_scope: `"all"` random weights, or only the `"classifier"`; see `kl_divergence`.
        samples: weight samples per update, over which the likelihood is averaged.
        kl_warmup: how the weight of the KL grows: `"constant"`, `"linear"` or `"blundell"`; see `kl_factor`.
        kl_warmup_epochs: the length of the linear warm-up.
        trades: beta of TRADES (Zhang et al., 2019), or None. The data term is then
            -log p(y | x, w) + beta KL(p(. | x, w) || p(. | x^adv, w)), and x^adv maximises that KL, not the loss.
            BatchNorm sees x and x^adv as one batch, as it will at test time by its running statistics; in the authors'
            code each has its own.
        clean: the share of clean inputs in the loss, clean * (-log p(y | x, w)) + (1 - clean) * (-log p(y | x^adv, w));
            1/2 in PNI and Learn2Perturb. BatchNorm sees one batch of both, as with `trades`.
        information_gain: of IG-BNN, the weight of |IG(x^adv) - IG(x)| in the loss of its particles; see
            `ig_bnn.information_gain`.
    """

    likelihood: Likelihood = Categorical()
    alpha: float = 1.0
    kl_scope: str = "all"
    samples: int = 1
    kl_warmup: str = "constant"
    kl_warmup_epochs: float = 1.0
    trades: float | None = None
    clean: float = 0.0
    information_gain: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        within("alpha", self.alpha, "(0, 1]", "1 is the evidence lower bound itself")
        one_of("kl_scope", self.kl_scope, SCOPES)
        positive_whole("samples", self.samples)
        one_of("kl_warmup", self.kl_warmup, KL_WARMUPS)
        within("kl_warmup_epochs", self.kl_warmup_epochs, "(0, 1e6]")
        if self.trades is not None:
            within("trades", self.trades, "(0, 1e6]", 'beta of TRADES, such as 6.0, or None ("none" in a file)')
        within("clean", self.clean, "[0, 1)", "the share of clean inputs in the loss, such as 0.5")
        if self.clean and self.trades is not None:
            given = f"clean={self.clean} and trades={self.trades}"
            raise ArgumentError(f"the loss of TRADES has a clean term of its own, got {given}; leave one of them out")
        within("information_gain", self.information_gain, "[0, 1e6]", "5 in IG-BNN")

    @property
    def takes_clean(self) -> bool:
        """Whether the update needs the clean inputs beside the perturbed ones."""
        return self.trades is not None or self.clean > 0 or self.information_gain > 0
