"""The loss of training: the negative log-likelihood of perturbed data plus alpha / N times the KL (eq. 7-13)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from advbnn.bayes.kl import kl_divergence
from advbnn.bayes.likelihoods import Gaussian
from advbnn.bayes.priors import GaussianPrior
from advbnn.bayes.protocol import gaussian_parameters
from advbnn.bayes.sgld import negative_log_prior
from advbnn.defenses.ig_bnn import information_gain
from advbnn.defenses.objective import RobustELBO
from advbnn.training.hidden_biases import HiddenBiases


class Loss(NamedTuple):
    """The objective of one batch, its mean data term and its KL (or -log p(w)) without a weight, all scalars.

    The score is the number of correctly classified examples, or the sum of squared errors.
    """

    total: Tensor
    nll: Tensor
    kl: Tensor
    score: Tensor


class RobustLoss(nn.Module):
    """The robust ELBO of one model, as a module that returns the loss of a batch.

    It owns the learned log noise of a Gaussian likelihood. Distributed training wraps it: an update is one forward pass
    of this module, with any number of weight samples. `examples` is N, the size of the training set.

    With a `prior` over the weights of a deterministic network, -log p(w) replaces the KL. Optimization then finds the
    MAP estimate, and Langevin dynamics samples the posterior.
    """

    log_noise: nn.Parameter | None

    def __init__(
        self, model: nn.Module, objective: RobustELBO, examples: int, prior: GaussianPrior | None = None
    ) -> None:
        super().__init__()
        self.model, self.objective, self.examples, self.prior = model, objective, examples, prior
        self.training = model.training
        self.is_bayesian = bool(gaussian_parameters(model))
        self._hidden_biases = HiddenBiases(model)
        self.log_noise = None
        if isinstance(objective.likelihood, Gaussian) and objective.likelihood.learned:
            start = math.log(objective.likelihood.noise_std)
            self.log_noise = nn.Parameter(next(model.parameters()).new_tensor(start))

    @property
    def learned(self) -> nn.Module:
        """Everything that is learned: the network, and the noise of the likelihood if that is."""
        return self.model if self.log_noise is None else self

    def forward(
        self,
        x: Tensor,
        x_adv: Tensor,
        y: Tensor,
        kl_factor: float | Tensor = 1.0,
        share: float = 1.0,
        teacher: Tensor | None = None,
        consistency: float = 0.0,
    ) -> Loss:
        """The loss of a batch, with fresh weight samples; clean inputs are used if the objective `takes_clean`.

        The `kl_factor` multiplies alpha / N. The `share` multiplies the data term: the size of this shard over the mean
        size of the shards, so that the mean over shards is the mean over examples. The `teacher` gives outputs for the
        perturbed inputs; the data term then has `consistency` times the KL from them.
        """
        with self._hidden_biases.without_gradients():
            parts = [self._data_terms(x, x_adv, y, teacher, consistency) for _ in range(self.objective.samples)]
        nll = torch.stack([term for term, _ in parts]).mean()
        score = torch.stack([score for _, score in parts]).mean(0).sum()
        penalty = self.penalty()
        total = share * nll if penalty is None else share * nll + penalty
        if self.is_bayesian:
            kl = kl_divergence(self.model, self.objective.kl_scope)
        elif self.prior is not None:
            kl = negative_log_prior(self.model, self.prior)
        else:
            return Loss(total, nll.detach(), torch.zeros_like(nll), score)
        total = total + self.objective.alpha / self.examples * kl_factor * kl
        return Loss(total, nll.detach(), kl.detach(), score)

    def penalty(self) -> Tensor | None:
        """What modules add to the loss by a method `penalty()`: a term that keeps learned noise up, or the KL of a
        posterior family of its own, times alpha / N.
        """
        methods = [getattr(part, "penalty", None) for part in self.model.modules()]
        terms = [method() for method in methods if callable(method)]
        return torch.stack(terms).sum() if terms else None

    def _data_terms(
        self, x: Tensor, x_adv: Tensor, y: Tensor, teacher: Tensor | None, consistency: float
    ) -> tuple[Tensor, Tensor]:
        """The data term of each example with one weight sample, and the score of its perturbed input."""
        # one pass, so that both halves have the same weights and batch statistics
        outputs = self.model(torch.cat([x, x_adv]) if self.objective.takes_clean else x_adv)
        return data_terms(self.objective, outputs, y, self.log_noise, teacher, consistency)


def data_terms(
    objective: RobustELBO,
    outputs: Tensor,
    y: Tensor,
    log_noise: Tensor | None = None,
    teacher: Tensor | None = None,
    consistency: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The data term of each example and the score of its perturbed input, from the outputs for perturbed inputs or,
    if the objective `takes_clean`, for clean ones and then perturbed ones; see `RobustLoss.forward`.

    Outputs [n, K, classes] are those of the particles of IG-BNN: the term is their mean loss.
    """
    likelihood, beta = objective.likelihood, objective.trades
    clean, outputs = outputs.chunk(2) if objective.takes_clean else (outputs, outputs)
    if outputs.dim() == 3:
        count = outputs.shape[1]
        term = likelihood.nll(outputs.flatten(0, 1), y.repeat_interleave(count, 0), log_noise).view(-1, count).mean(1)
        if objective.information_gain:
            change = information_gain(outputs) - information_gain(clean)
            term = term + objective.information_gain * change.abs()
        outputs = outputs.mean(1)
    elif beta is None:
        term = likelihood.nll(outputs, y, log_noise)
        if objective.clean:
            term = objective.clean * likelihood.nll(clean, y, log_noise) + (1 - objective.clean) * term
    else:
        term = likelihood.nll(clean, y, log_noise) + beta * likelihood.kl(clean, outputs, log_noise)
    if teacher is not None:
        term = term + consistency * likelihood.kl(teacher, outputs, log_noise)
    return term, likelihood.score(outputs.detach(), y)
