"""Regression: the moments of the ensemble by hand and in closed form, and the error where the worst case is known."""

import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, distributions, nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import Bayesian, bayesianize
from advbnn.data import from_tensors
from advbnn.evaluation.regression import regress, score_regression
from advbnn.randomness import scoring_seed, seeded

ANYWHERE = (-math.inf, math.inf)
NEAR = Threat("linf", 0.1, bounds=ANYWHERE)
X = torch.linspace(-1, 1, 24).reshape(6, 4)
Y = torch.linspace(0, 1, 12).reshape(6, 2)


def bnn() -> Bayesian:
    with seeded(0):
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return bayesianize(net, init_std=0.3)


def sampled(model: Bayesian, x: Tensor, samples: int, seed: int) -> Tensor:
    return torch.stack([model.run(model.sample(eps), x) for eps in model.noise(samples, seed=seed)]).detach()


def test_the_moments_are_those_of_the_seeded_weight_samples() -> None:
    model = bnn().eval()
    outputs = sampled(model, X, 5, seed=2)
    found = regress(model, X, samples=5, seed=2, noise_std=0.4)
    torch.testing.assert_close(found.mean, outputs.mean(0))
    torch.testing.assert_close(found.weights_std, (outputs.square().mean(0) - outputs.mean(0).square()).sqrt())
    assert torch.equal(found.noise_std, torch.full((6, 2), 0.4))
    torch.testing.assert_close(found.std.square(), found.weights_std.square() + 0.4**2)


def test_the_spread_of_a_linear_model_is_known() -> None:
    """Var[x w] = sum_i x_i^2 s_i^2, and `std` is the standard deviation of simulated observations."""
    with seeded(0):
        model = bayesianize(nn.Linear(4, 1, bias=False), init_std=0.3)
        expected = 0.3 * X.square().sum(1, keepdim=True).sqrt()
        found = regress(model, X, samples=4000, noise_std=0.2)
        observed = torch.stack([model(X) + 0.2 * torch.randn(6, 1) for _ in range(4000)]).detach()
    # the relative standard error of a standard deviation of m samples is 1 / sqrt(2 m), here 1 in 90
    torch.testing.assert_close(found.weights_std, expected, rtol=0.05, atol=0)
    torch.testing.assert_close(found.std, observed.std(0), rtol=0.08, atol=0)
    torch.testing.assert_close(found.mean, model.net(X).detach(), rtol=0, atol=0.03)


def test_deterministic_networks_and_outputs_of_any_shape_and_type() -> None:
    net = nn.Linear(4, 3)
    found = regress(net, X, samples=3, noise_std=0.5)
    torch.testing.assert_close(found.mean, net(X).detach())
    assert not found.weights_std.any() and torch.equal(found.std, found.noise_std)
    model = bayesianize(nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3))).bfloat16())
    found = regress(model, X.bfloat16(), samples=3)
    assert (found.std.shape, found.std.dtype) == ((6, 2, 3), torch.float32)
    assert regress(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), X).mean.shape == (6,)


@pytest.mark.parametrize("batch_size", [250, 4])
def test_the_error_is_that_of_the_mean_and_the_likelihood_that_of_the_mixture(batch_size: int) -> None:
    model, sigma, samples = bnn().eval(), 0.4, 5
    outputs = sampled(model, X, samples, scoring_seed(3))
    squared = (outputs.mean(0) - Y).square().mean(1)
    each = distributions.Independent(distributions.Normal(outputs.transpose(0, 1), sigma), 1)
    mixture = distributions.MixtureSameFamily(distributions.Categorical(torch.ones(6, samples)), each)
    nll = -mixture.log_prob(Y)
    score = score_regression(model, from_tensors(X, Y), samples=samples, seed=3, noise_std=sigma, batch_size=batch_size)
    assert score.mse.value == pytest.approx(squared.mean().item(), rel=1e-5)
    assert score.nll is not None and score.nll.value == pytest.approx(nll.mean().item(), rel=1e-5)
    for found, values in ((score.mse, squared), (score.nll, nll)):
        error = 1.959964 * values.std().item() / math.sqrt(6)
        assert found.interval[1] == pytest.approx(values.mean().item() + error, rel=1e-5)
    assert score.mse.interval[0] >= 0
    assert score.examples == 6
    assert score_regression(model, from_tensors(X, Y)).nll is None, "there is no likelihood without noise"


def test_the_error_of_a_linear_model_under_attack_is_known() -> None:
    """Within eps in linf an error |r| grows to |r| + eps |w|_1."""
    with seeded(0):
        net, x = nn.Linear(4, 1), torch.rand(40, 4)
        y = x.sum(1, keepdim=True) + torch.randn(40, 1)
    attack = PGD(NEAR, loss="nll", steps=10)
    residual = (net(x) - y).abs().detach()
    worst = (residual + 0.1 * net.weight.detach().abs().sum()).square().mean().item()
    data = from_tensors(x, y)
    assert score_regression(net, data, attack).mse.value == pytest.approx(worst, rel=1e-4)
    assert score_regression(net, data).mse.value == pytest.approx(residual.square().mean().item(), rel=1e-5)


@dataclass(frozen=True)
class Shift:
    """Adds a number, and records its seeds."""

    by: float
    threat: Threat = NEAR
    seeds: list[int | None] = field(default_factory=list)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
        assert not model.training and not any(p.requires_grad for p in model.parameters())
        self.seeds.append(seed)
        return x.add_(self.by)


def test_the_attack_and_the_evaluation_have_different_seeds() -> None:
    shift = Shift(0.1)
    model = bnn().train()
    score = score_regression(model, from_tensors(X, Y), shift, batch_size=2)
    assert len({*shift.seeds, scoring_seed(0)}) == 4
    expected = score_regression(model, from_tensors(X + 0.1, Y))
    assert score.mse.value == pytest.approx(expected.mse.value, rel=1e-5)
    assert model.training and all(p.requires_grad for p in model.parameters())


def test_an_attack_from_elsewhere_has_the_generators_of_its_seed() -> None:
    @dataclass(frozen=True)
    class Noise:
        threat: Threat = NEAR

        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
            return x + 0.1 * torch.rand_like(x)

    state = torch.get_rng_state()
    first, second = (score_regression(bnn(), from_tensors(X, Y), Noise()) for _ in range(2))
    assert first == second and torch.equal(torch.get_rng_state(), state)


def test_a_radius_of_zero_is_no_attack() -> None:
    still = Shift(0.5, threat=Threat("linf", 0.0, bounds=ANYWHERE))
    assert score_regression(bnn(), from_tensors(X, Y), still) == score_regression(bnn(), from_tensors(X, Y))


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def test_refuses_bad_input() -> None:
    for call, message in (
        (lambda d: regress(bnn(), X, samples=0), "samples .*0"),
        (lambda d: regress(bnn(), X, noise_std=None), "noise_std .*None.*FitResult"),
        (lambda d: regress(bnn(), X / 0), "x .*finite.*6 of 6"),
        (lambda d: regress(Pair(), X), "model .*one tensor.*tuple"),
        (lambda d: regress(nn.Flatten(0), X), r"model .*6 rows.*\[24\]"),
        (lambda d: score_regression(bnn(), from_tensors(X, Y[:, :1])), r"y .*\(6, 1\)"),
        (lambda d: score_regression(bnn(), from_tensors(X[:, :3], Y)), r"data .*\[n, 4\]"),
        (lambda d: score_regression(bnn(), d, PGD(Threat())), "attack .*loss='ce'.*loss='nll'"),
        (lambda d: score_regression(bnn(), d, Shift(0.2)), "threat"),
        (lambda d: score_regression(bnn(), from_tensors(X, torch.arange(6))), "data .*advbnn.evaluate"),
    ):
        with pytest.raises(ValueError, match=message):
            call(from_tensors(X, Y))


def test_refuses_outputs_that_are_not_finite() -> None:
    model = bnn()
    with torch.no_grad():
        model.net.get_parameter("3.bias").fill_(math.nan)
    with pytest.raises(ValueError, match="model .*NaN"):
        score_regression(model, from_tensors(X, Y))
