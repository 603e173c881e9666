"""Langevin dynamics: known posteriors, the update formulas, state, and the prior."""

import io
import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR

from advbnn.bayes.priors import GaussianPrior, ScaleMixturePrior
from advbnn.bayes.sample_bank import SampleBank
from advbnn.bayes.sgld import PSGLD, SGLD, keep, negative_log_prior
from advbnn.randomness import seeded
from small_nets import dense_net

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
        """Of the mean negative log-likelihood plus the prior's share, for each row of `w`: each row is a chain."""
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
    regression: Regression, optimizer: Callable[[list[Tensor]], Optimizer], steps: int, batch: int | None, a: float
) -> Tensor:
    """The states of independent chains after `steps` updates from the origin; the step size falls if `a` is given."""
    w = torch.zeros(CHAINS, 2, requires_grad=True)
    dynamics = optimizer([w])
    scheduler = LambdaLR(dynamics, lambda t: a * (5 + t) ** -0.55 if a else 1.0)  # Welling and Teh's schedule
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
    states = final_states(
        regression, lambda w: SGLD(w, lr, data_size=EXAMPLES, temperature=temperature), 200, batch=None, a=0
    )
    biased = torch.linalg.inv(precision - lr / (2 * EXAMPLES) * precision @ precision)
    assert_gaussian(states, regression.mean(), temperature * biased)
    assert_gaussian(states, regression.mean(), temperature * precision.inverse(), bias=lr)


@pytest.mark.parametrize(
    ("optimizer", "batch", "a"),
    [
        (lambda w: SGLD(w, 1.0, data_size=EXAMPLES), 5, 0.5),
        (lambda w: PSGLD(w, 1.0, data_size=EXAMPLES, burn_in=100), None, 0.2),
        (lambda w: PSGLD(w, 1.0, data_size=EXAMPLES, burn_in=100), 5, 0.2),
    ],
    ids=["sgld mini-batch", "psgld", "psgld mini-batch"],
)
def test_chains_sample_the_posterior_as_the_step_shrinks(
    regression: Regression, optimizer: Callable[[list[Tensor]], Optimizer], batch: int | None, a: float
) -> None:
    """SGLD's last step is 0.018; mini-batches add lr N / 2B = 4% to the variance if their gradients have variance 1."""
    states = final_states(regression, optimizer, 400, batch, a)
    assert_gaussian(states, regression.mean(), regression.precision().inverse(), bias=0.05)


def test_a_constant_preconditioner_is_right_where_one_that_always_adapts_is_not() -> None:
    """Without its correction a preconditioner 1 / |g| gives the density |w| exp(-w^2 / 2), of variance 2."""

    def variance(burn_in: int | None) -> float:
        with seeded(2):
            w = torch.randn(1000, 4).requires_grad_()  # starts in the target N(0, 1)
            dynamics = PSGLD([w], 2e-3, data_size=1, burn_in=burn_in)
            for _ in range(2000):
                w.grad = w.detach().clone()
                dynamics.step()
        return w.square().mean().item()

    assert abs(variance(burn_in=300) - 1) < 0.12
    assert 1.4 < variance(burn_in=None) < 2.2


def test_a_chain_fills_a_bank_that_predicts_the_posterior(regression: Regression) -> None:
    """One long chain of a module, thinned, has the analytic mean and standard deviation."""
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
    std = regression.precision().inverse().diag().sqrt()
    assert ((weights.mean(0) - regression.mean()) / std).abs().max() < 0.4  # four standard errors
    assert (weights.std(0) / std - 1).abs().max() < 0.3


def train(net: nn.Module, optimizer: Optimizer, steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        x = torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


@pytest.mark.parametrize("kind", ["sgld", "psgld"])
def test_at_temperature_zero_it_is_plain_descent(kind: str) -> None:
    cold, plain = dense_net(), dense_net()
    if kind == "sgld":
        langevin = SGLD(cold.parameters(), 0.1, data_size=10, temperature=0.0)
        descent = SGD(plain.parameters(), 0.1)
    else:
        langevin = PSGLD(cold.parameters(), 0.01, data_size=10, temperature=0.0, burn_in=None)
        descent = RMSprop(plain.parameters(), 0.01, alpha=0.99, eps=1e-5)
        train(plain, SGD(plain.parameters(), 0.0), 1)  # for the gradients alone
        for p in plain.parameters():
            begin = torch.full_like(p, p.grad.square().mean().item())
            descent.state[p] = {"step": torch.tensor(0.0), "square_avg": begin}
    random_state = torch.get_rng_state()
    weights = train(cold, langevin, 20)
    assert torch.equal(torch.get_rng_state(), random_state)
    for (name, _), ours, theirs in zip(cold.named_parameters(), weights, train(plain, descent, 20), strict=True):
        # the gradient of a bias before BatchNorm is a rounding error, which RMSprop makes large
        if name != "0.bias":
            torch.testing.assert_close(ours, theirs)


def test_one_update_is_the_formula() -> None:
    start, gradient = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 4.0])
    with seeded(6):
        xi = torch.randn(2)

    def updated(make: Callable[[list[Tensor]], Optimizer]) -> Tensor:
        w = start.clone().requires_grad_()
        w.grad = gradient.clone()
        with seeded(6):
            make([w]).step()
        return w.detach()

    sgld = updated(lambda w: SGLD(w, 0.1, data_size=50, temperature=0.5))
    torch.testing.assert_close(sgld, start - 0.1 * gradient + math.sqrt(2 * 0.1 * 0.5 / 50) * xi)
    psgld = updated(lambda w: PSGLD(w, 0.1, data_size=50, burn_in=1, alpha=0.9, eps=0.01))
    g = 1 / ((0.9 * gradient.square().mean() + 0.1 * gradient**2).sqrt() + 0.01)
    torch.testing.assert_close(psgld, start - 0.1 * g * gradient + (2 * 0.1 / 50 * g).sqrt() * xi)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGLD(p, 0.05, data_size=20),
        lambda p: PSGLD(p, 0.01, data_size=20, burn_in=8),  # the burn-in ends within the resumed part
    ],
    ids=["sgld", "psgld"],
)
def test_resuming_from_a_state_dict_is_exact(make: Callable[..., Optimizer]) -> None:
    net = dense_net()
    optimizer = make(net.parameters())
    torch.manual_seed(4)
    train(net, optimizer, 5)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, file)
    expected = train(net, optimizer, 6)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = dense_net()
    again.load_state_dict(saved["net"])
    optimizer = make(again.parameters())
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["rng"])
    assert all(torch.equal(a, b) for a, b in zip(train(again, optimizer, 6), expected, strict=True))


def test_a_parameter_without_a_gradient_stays_and_a_late_one_still_adapts() -> None:
    early, late = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    optimizer = PSGLD([early, late], 1e-3, data_size=100, burn_in=2)
    for _ in range(5):
        early.grad = torch.ones(3)
        optimizer.step()
    assert torch.equal(late.detach(), torch.ones(3))
    late.grad = torch.ones(3)
    optimizer.step()
    assert optimizer.state[late]["square_avg"].allclose(torch.tensor(1.0))
    held = optimizer.state[early]["square_avg"].clone()
    early.grad.fill_(100)
    optimizer.step()
    assert torch.equal(optimizer.state[early]["square_avg"], held)


def test_groups_set_the_step_and_a_closure_gives_the_loss() -> None:
    still, moving = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    optimizer = SGLD([{"params": [still], "lr": 1e-30}, {"params": [moving]}], 1.0, data_size=10)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (still + moving).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 8
    assert torch.equal(still.detach(), torch.ones(2)) and not torch.equal(moving.detach(), torch.ones(2))


@pytest.mark.parametrize(
    ("argument", "value"),
    [("lr", 0.0), ("data_size", 0), ("temperature", -1.0), ("burn_in", 0), ("alpha", 1.0), ("eps", 0.0)],
)
def test_bad_settings_are_refused(argument: str, value: float) -> None:
    parameters, settings = [torch.zeros(1, requires_grad=True)], {"lr": 0.1, "data_size": 10, argument: value}
    with pytest.raises(ValueError, match=argument):
        PSGLD(parameters, **{"burn_in": 5, **settings})


@given(burn_in=st.integers(0, 30), every=st.integers(1, 10), total=st.integers(1, 60))
def test_thinning_keeps_every_nth_state_after_the_burn_in(burn_in: int, every: int, total: int) -> None:
    kept = [step for step in range(total + 1) if keep(step, burn_in=burn_in, every=every)]
    assert kept == list(range(burn_in + every, total + 1, every))


def test_bad_thinning_is_refused() -> None:
    for thinning in ({"burn_in": -1, "every": 1}, {"burn_in": 0, "every": 0}):
        with pytest.raises(ValueError, match="burn_in.*every"):
            keep(1, **thinning)


def test_the_prior_is_the_log_density_up_to_a_constant() -> None:
    net = dense_net()
    net[0].bias.requires_grad_(False)
    prior = GaussianPrior(std=0.3, mean={"1.weight": 1.0})
    negative_log_prior(net, prior).backward()
    assert net[0].bias.grad is None
    for name, weight in net.named_parameters():
        if weight.requires_grad:
            centre = 1.0 if name == "1.weight" else 0.0
            expected = torch.autograd.grad(-torch.distributions.Normal(centre, 0.3).log_prob(weight).sum(), weight)
            torch.testing.assert_close(weight.grad, expected[0])
    with pytest.raises(TypeError, match="GaussianPrior"):
        negative_log_prior(net, ScaleMixturePrior())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="trainable"):
        negative_log_prior(net.requires_grad_(False), prior)
