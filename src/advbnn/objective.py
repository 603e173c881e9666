"""What training minimises: the negative log-likelihood of perturbed data plus alpha / N times the KL (eq. 7-13)."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.messages import unknown
from advbnn.posterior import Bayesian, kl_divergence
from advbnn.priors import GaussianPrior
from advbnn.schedules import KL_WARMUPS
from advbnn.sgld import negative_log_prior

SCOPES = ("all", "classifier")


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """p(y | x, w) = softmax(f(x; w))[y]: classification.

    Args:
        label_smoothing: the share of a label's weight that is spread evenly over all classes.
    """

    label_smoothing: float = 0.0

    attack_loss: ClassVar[str] = "ce"
    score_name: ClassVar[str] = "accuracy"
    better: ClassVar[int] = 1
    """The sign of a better score."""

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must lie in [0, 1), got {self.label_smoothing}")

    def nll(self, outputs: Tensor, y: Tensor, log_noise: Tensor | None = None) -> Tensor:
        """-log p(y | x, w) of each example, [n]."""
        return functional.cross_entropy(outputs, y, reduction="none", label_smoothing=self.label_smoothing)

    def divergence(self, outputs: Tensor, others: Tensor, log_noise: Tensor | None = None) -> Tensor:
        """KL(p(. | outputs) || p(. | others)) of each example, [n]."""
        log_p, log_q = outputs.log_softmax(-1), others.log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1)

    def mean(self, draws: Tensor) -> Tensor:
        """The outputs that stand for the mean probability over the draws [k, n, classes] (eq. 18)."""
        return draws.log_softmax(-1).logsumexp(0) - math.log(len(draws))

    def score(self, outputs: Tensor, y: Tensor) -> Tensor:
        """1 for each example that is classified correctly, else 0, [n]."""
        return (outputs.argmax(-1) == y).to(outputs.dtype)


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """y = f(x; w) + zeta with zeta ~ N(0, noise_std^2), the same for all inputs: regression.

    Args:
        noise_std: the standard deviation of the noise; if it is learned, where it starts.
        learned: fit its logarithm together with the weights.
    """

    noise_std: float = 1.0
    learned: bool = False

    attack_loss: ClassVar[str] = "nll"
    score_name: ClassVar[str] = "mse"
    better: ClassVar[int] = -1

    def __post_init__(self) -> None:
        if not 0 < self.noise_std < math.inf:
            raise ValueError(f"noise_std must be a positive standard deviation, got {self.noise_std}")

    def nll(self, outputs: Tensor, y: Tensor, log_noise: Tensor | None = None) -> Tensor:
        """-log p(y | x, w) of each example, [n]; `log_noise` replaces the logarithm of `noise_std`."""
        log_std = self._log_std(outputs, log_noise)
        z = (_same_shape(outputs, y) - outputs) * (-log_std).exp()
        return (z.square() / 2 + log_std + math.log(2 * math.pi) / 2).reshape(len(y), -1).sum(1)

    def divergence(self, outputs: Tensor, others: Tensor, log_noise: Tensor | None = None) -> Tensor:
        """KL(p(. | outputs) || p(. | others)) of each example, [n]."""
        z = (outputs - others) * (-self._log_std(outputs, log_noise)).exp()
        return z.square().reshape(len(outputs), -1).sum(1) / 2

    def mean(self, draws: Tensor) -> Tensor:
        """The mean output over the draws [k, n, ...]."""
        return draws.mean(0)

    def score(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The squared error of each example, averaged over its outputs, [n]."""
        return (_same_shape(outputs, y) - outputs).square().reshape(len(y), -1).mean(1)

    def _log_std(self, outputs: Tensor, log_noise: Tensor | None) -> Tensor:
        if log_noise is not None:
            return log_noise
        return torch.full((), math.log(self.noise_std), dtype=outputs.dtype, device=outputs.device)


Likelihood = Categorical | Gaussian


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
            raise ValueError(f"alpha must lie in (0, 1], got {self.alpha}; 1 is the evidence lower bound itself")
        if self.kl_scope not in SCOPES:
            raise unknown("kl_scope", self.kl_scope, SCOPES)
        if self.draws < 1:
            raise ValueError(f"draws must be at least 1, got {self.draws}")
        if self.kl_warmup not in KL_WARMUPS:
            raise unknown("kl_warmup", self.kl_warmup, KL_WARMUPS)
        if not self.kl_warmup_epochs > 0:
            raise ValueError(f"kl_warmup_epochs must be positive, got {self.kl_warmup_epochs}")
        if self.trades is not None and not self.trades > 0:
            raise ValueError(f"trades must be a positive beta such as 6.0, or None, got {self.trades}")


class Loss(NamedTuple):
    """The objective of one batch and its parts, all scalars.

    Attributes:
        total: what is differentiated.
        nll: the mean data term.
        kl: KL(q || p), or -log p(w), without its weight; 0 for a network that has neither.
        score: the sum over the examples of 1 if classified correctly, or of the squared error.
    """

    total: Tensor
    nll: Tensor
    kl: Tensor
    score: Tensor


class RobustLoss(nn.Module):
    """The robust ELBO of one model, as a module: one call gives the loss of a batch.

    It owns what is learned besides the weights, the logarithm of a Gaussian likelihood's noise, and it is what
    distributed training wraps: one forward pass of it for every update, however many draws that takes.

    Args:
        model: the network.
        objective: what to minimise.
        examples: N, the size of the training set.
        prior: a prior over the weights of a network that has no random ones; -log p(w) takes the place of the
            divergence, and minimising gives the most probable weights, Langevin dynamics their posterior.
    """

    log_noise: nn.Parameter | None

    def __init__(
        self, model: nn.Module, objective: RobustELBO, examples: int, prior: GaussianPrior | None = None
    ) -> None:
        super().__init__()
        if examples < 1:
            raise ValueError(f"examples must be the size of the training set, got {examples}")
        self.model, self.objective, self.examples, self.prior = model, objective, examples, prior
        self.training = model.training
        self.is_bayesian = any(isinstance(part, Bayesian) for part in model.modules())
        likelihood = objective.likelihood
        learned = isinstance(likelihood, Gaussian) and likelihood.learned
        reference = next(model.parameters())
        start = math.log(likelihood.noise_std) if isinstance(likelihood, Gaussian) else 0.0
        self.log_noise = nn.Parameter(reference.new_tensor(start)) if learned else None

    def forward(self, x: Tensor, x_adv: Tensor, y: Tensor, kl_factor: float | Tensor = 1.0, share: float = 1.0) -> Loss:
        """The loss of a batch, with fresh weights.

        Args:
            x: the inputs as they are; used by TRADES alone.
            x_adv: the perturbed inputs.
            y: the targets.
            kl_factor: multiplies alpha / N.
            share: multiplies the data term: in a shard, its size over the mean size of all shards, so that the mean
                over the shards is the mean over all examples.
        """
        parts = [self._data_terms(x, x_adv, y) for _ in range(self.objective.draws)]
        nll = torch.stack([term for term, _ in parts]).mean()
        score = torch.stack([score for _, score in parts]).mean(0).sum()
        divergence = self._divergence()
        if divergence is None:
            return Loss(share * nll, nll.detach(), torch.zeros_like(nll), score)
        total = share * nll + self.objective.alpha / self.examples * kl_factor * divergence
        return Loss(total, nll.detach(), divergence.detach(), score)

    def _divergence(self) -> Tensor | None:
        if self.is_bayesian:
            return kl_divergence(self.model, self.objective.kl_scope)
        return None if self.prior is None else negative_log_prior(self.model, self.prior)

    def _data_terms(self, x: Tensor, x_adv: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The data term of each example with one weight draw, and its score on the perturbed input."""
        likelihood, beta = self.objective.likelihood, self.objective.trades
        if beta is None:
            outputs = self.model(x_adv)
            return likelihood.nll(outputs, y, self.log_noise), likelihood.score(outputs.detach(), y)
        # in one pass, so that both halves see the same weights and the same batch statistics
        clean, outputs = self.model(torch.cat([x, x_adv])).chunk(2)
        term = likelihood.nll(clean, y, self.log_noise) + beta * likelihood.divergence(clean, outputs, self.log_noise)
        return term, likelihood.score(outputs.detach(), y)


def _same_shape(outputs: Tensor, y: Tensor) -> Tensor:
    if outputs.shape != y.shape:
        raise ValueError(
            f"a Gaussian likelihood compares y with the network's output: y has shape {tuple(y.shape)}, the output "
            f"{tuple(outputs.shape)}; give both the same shape, for example y[:, None]"
        )
    return y
