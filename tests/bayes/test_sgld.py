"""Langevin dynamics against posteriors that are known."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from advbnn.bayes.priors import GaussianPrior
from advbnn.bayes.sample_bank import SampleBank
from advbnn.bayes.sgld import PSGLD, SGLD, keep, negative_log_prior, step_size
from advbnn.randomness import seeded

EXAMPLES, CHAINS = 20, 6000


class Regression(NamedTuple):
    """Bayesian linear regression y = x w + N(0, 1) with prior w ~ N(0, 1), whose posterior is Gaussian."""

    x: Tensor
    y: Tensor

    def precision(self) -> Tensor:
        return self.x.T @ self.x + torch.eye(2)

    def mean(self) -> Tensor:
        return torch.linalg.solve(self.precision(), self.x.T @ self.y)

    def gradient(self, w: Tensor, batch: int | None) -> Tensor:
        """Of the mean negative log-likelihood plus the prior's share, in each row of `w`: each row is a chain."""
        if batch is None:
            likelihood = (w @ self.x.T - self.y) @ self.x / EXAMPLES
        else:
            chosen = torch.randint(EXAMPLES, (len(w), batch))
            x, y = self.x[chosen], self.y[chosen]
            likelihood = (((x * w[:, None]).sum(-1) - y)[..., None] * x).mean(1)
        return likelihood + w / EXAMPLES


@pytest.fixture
def regression() -> Regression:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, 2, generator=generator)
    x[:, 1] += x[:, 0] / 2  # so that the posterior is correlated
    return Regression(x, x @ torch.tensor([1.0, -0.5]) + torch.randn(EXAMPLES, generator=generator))


def final_states(
    regression: Regression,
    optimizer: Callable[[list[Tensor]], Optimizer],
    steps: int,
    batch: int | None = None,
    schedule: Callable[[int], float] = lambda t: 1.0,
) -> Tensor:
    """The states of independent chains after `steps` updates from the origin."""
    w = torch.zeros(CHAINS, 2, requires_grad=True)
    dynamics = optimizer([w])
    scheduler = LambdaLR(dynamics, schedule)
    with seeded(1):
        for _ in range(steps):
            w.grad = regression.gradient(w.detach(), batch)
            dynamics.step()
            scheduler.step()
    return w.detach()


def assert_gaussian(states: Tensor, mean: Tensor, covariance: Tensor, bias: float = 0.0) -> None:
    """Mean and covariance within 5 standard errors (and `bias`), in coordinates where the target is N(0, I)."""
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (states - mean).T, upper=False)
    assert white.mean(1).abs().max() < 5 / CHAINS**0.5
    assert (torch.cov(white) - torch.eye(len(white))).abs().max() < 5 * (2 / CHAINS) ** 0.5 + bias


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_full_batch_sgld_samples_the_posterior(regression: Regression, temperature: float) -> None:
    """Up to the bias of a fixed step, which for a Gaussian is known: covariance (P - lr P^2 / 2N)^-1."""
    lr, precision = 0.1, regression.precision()
    states = final_states(regression, lambda w: SGLD(w, lr, data_size=EXAMPLES, temperature=temperature), steps=200)
    biased = torch.linalg.inv(precision - lr / (2 * EXAMPLES) * precision @ precision)
    assert_gaussian(states, regression.mean(), temperature * biased)
    assert_gaussian(states, regression.mean(), temperature * precision.inverse(), bias=lr)


def test_mini_batch_sgld_samples_the_posterior_as_the_step_shrinks(regression: Regression) -> None:
    """The last step is 0.018; mini-batches add lr N / 2B = 4% to the variance where their gradients have variance 1."""
    states = final_states(
        regression,
        lambda w: SGLD(w, 1.0, data_size=EXAMPLES),
        steps=400,
        batch=5,
        schedule=lambda t: step_size(t, a=0.5, b=5),
    )
    assert_gaussian(states, regression.mean(), regression.precision().inverse(), bias=0.05)


@pytest.mark.parametrize("batch", [None, 5])
def test_psgld_samples_the_posterior_as_the_step_shrinks(regression: Regression, batch: int | None) -> None:
    states = final_states(
        regression,
        lambda w: PSGLD(w, 1.0, data_size=EXAMPLES, burn_in=100),
        steps=400,
        batch=batch,
        schedule=lambda t: step_size(t, a=0.2, b=5),
    )
    assert_gaussian(states, regression.mean(), regression.precision().inverse(), bias=0.05)


def stationary_run(
    curvature: Tensor, optimizer: Callable[[list[Tensor]], Optimizer], steps: int
) -> tuple[Tensor, Tensor]:
    """States of 1000 chains on N(0, 1 / curvature) after half and after all of the steps, in standard deviations.

    The chains begin in the target, so that what is measured is not the way there.
    """
    with seeded(2):
        std = curvature.rsqrt()
        w = (torch.randn(1000, len(curvature)) * std).requires_grad_()
        dynamics, states = optimizer([w]), []
        for step in range(1, steps + 1):
            w.grad = (w * curvature).detach()
            dynamics.step()
            if step in (steps // 2, steps):
                states.append(w.detach() / std)
    return states[0], states[1]


def test_psgld_mixes_better_on_a_badly_scaled_target() -> None:
    """The statistic: the widest coordinate's autocorrelation over 1000 updates, standard deviations 1 and 0.01.

    Both step sizes move the narrowest coordinate by a tenth of the way to its mean per update.
    """
    curvature = torch.tensor([1.0, 1e4])

    def autocorrelation(optimizer: Callable[[list[Tensor]], Optimizer]) -> float:
        earlier, later = stationary_run(curvature, optimizer, steps=2000)
        return torch.corrcoef(torch.stack([earlier[:, 0], later[:, 0]]))[0, 1].item()

    assert autocorrelation(lambda w: SGLD(w, 1e-5, data_size=1)) > 0.95  # in theory 0.99
    assert autocorrelation(lambda w: PSGLD(w, 1e-3, data_size=1, burn_in=1000)) < 0.6


def test_a_held_preconditioner_is_right_where_one_that_adapts_for_ever_is_not() -> None:
    """Without its correction a preconditioner 1 / |g| makes the density |w| exp(-w^2 / 2), of variance 2."""
    slow = torch.ones(4)
    _, held = stationary_run(slow, lambda w: PSGLD(w, 2e-3, data_size=1, burn_in=300), steps=2000)
    _, adapting = stationary_run(slow, lambda w: PSGLD(w, 2e-3, data_size=1, burn_in=None), steps=2000)
    assert abs(held.square().mean().item() - 1) < 0.12
    assert 1.5 < adapting.square().mean() < 2.1


def test_a_chain_fills_a_bank_that_predicts_the_posterior(regression: Regression) -> None:
    """The whole way on a module: one long chain, thinned, gives the analytic predictive mean and spread."""
    net = nn.Linear(2, 1, bias=False)
    bank, optimizer = SampleBank(net), SGLD(net.parameters(), 0.2, data_size=EXAMPLES)
    prior = GaussianPrior(std=1.0)
    with seeded(7):
        for step in range(1, 1051):
            error = net(regression.x)[:, 0] - regression.y
            loss = error.square().mean() / 2 + negative_log_prior(net, prior) / EXAMPLES
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if keep(step, burn_in=50, every=10):
                bank.add()
    assert len(bank) == 100
    weights = torch.stack([bank.sample(k)["weight"][0] for k in range(100)])
    mean, covariance = regression.mean(), regression.precision().inverse()
    assert ((weights.mean(0) - mean) / covariance.diag().sqrt()).abs().max() < 0.4
    assert ((weights.std(0) / covariance.diag().sqrt()) - 1).abs().max() < 0.25
