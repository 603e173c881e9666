"""RandLayer: the paper's gradients, and a step with it against a step on the written-out objective."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from advbnn.bayes.kl import kl_divergence
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.priors import GaussianPrior
from advbnn.bayes.sampling import rand_layer


def parameters(shape: tuple[int, ...] = (4, 3)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mu, s, eps = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    return mu.requires_grad_(), (0.3 * s).requires_grad_(), eps


def test_samples_by_the_formula() -> None:
    mu, s, eps = parameters()
    assert torch.equal(rand_layer(mu, s, eps, prior_std=0.1, weight=1.0), mu + s.exp() * eps)
    torch.manual_seed(1)
    fresh = rand_layer(mu, s, prior_std=0.1, weight=1.0)
    assert not torch.equal(fresh, rand_layer(mu, s, prior_std=0.1, weight=1.0))


def test_gradients_are_those_of_the_papers_listing() -> None:
    mu, s, eps = parameters()
    sigma_0, n = 0.2, 50
    incoming = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    rand_layer(mu, s, eps, prior_std=sigma_0, weight=1 / n).backward(incoming)
    with torch.no_grad():
        torch.testing.assert_close(mu.grad, incoming + mu / (sigma_0 * sigma_0 * n))
        std = s.exp()
        torch.testing.assert_close(s.grad, incoming * std * eps - 1 / n + std * std / (sigma_0 * sigma_0 * n))


@pytest.mark.parametrize("prior_mean", [0.0, 1.0])
def test_equals_the_kl_in_the_loss(prior_mean: float) -> None:
    mu, s, eps = parameters()
    x = torch.randn(5, 3, dtype=torch.float64)
    weight = 0.02
    w = rand_layer(mu, s, eps, prior_std=0.2, weight=weight, prior_mean=prior_mean)
    implicit = torch.autograd.grad(functional.linear(x, w).square().mean(), (mu, s))
    loss = functional.linear(x, mu + s.exp() * eps).square().mean()
    loss = loss + weight * GaussianPrior(std=0.2, mean=prior_mean).kl("w", mu, s)
    torch.testing.assert_close(implicit, torch.autograd.grad(loss, (mu, s)))


def test_a_training_step_equals_a_step_on_the_objective() -> None:
    """One SGD step of eq. 13 on a network, with RandLayer and with the KL written out."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    explicit, implicit = bayesianize(copy.deepcopy(net)), bayesianize(net)
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1, 0])
    eps, weight = explicit.noise(seed=0)[0], 0.5 / 600

    loss = functional.cross_entropy(explicit.run(explicit.sample(eps), x), y) + weight * kl_divergence(explicit)
    loss.backward()
    pieces = eps.double().split([mu.numel() for _, mu, _ in implicit.posterior()])
    weights = {
        name: rand_layer(mu, s, piece.view(mu.shape), prior_std=0.05, weight=weight)
        for (name, mu, s), piece in zip(implicit.posterior(), pieces, strict=True)
    }
    functional.cross_entropy(functional_call(implicit.net, weights, (x,)), y).backward()
    for model in (explicit, implicit):
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    for ours, theirs in zip(implicit.parameters(), explicit.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_two_samples_before_one_backward_use_their_own_noise() -> None:
    mu, s, eps = parameters()
    first = rand_layer(mu, s, eps, prior_std=1.0, weight=0.0)
    second = rand_layer(mu, s, -2 * eps, prior_std=1.0, weight=0.0)
    (grad,) = torch.autograd.grad((first + second).sum(), s)
    torch.testing.assert_close(grad, -s.exp() * eps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": torch.zeros(2, 3)}, "eps.*shape"),
        ({"prior_std": 0.0}, "prior_std"),
        ({"weight": -1.0}, "weight.*alpha / N"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    mu, s, eps = parameters()
    with pytest.raises(ValueError, match=message):
        rand_layer(**{"mu": mu, "s": s, "eps": eps, "prior_std": 1.0, "weight": 1.0, **options})
