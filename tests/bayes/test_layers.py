"""Variational layers: three estimators of one posterior, and networks assembled from them."""

import copy
import math
from contextlib import ExitStack

import pytest
import torch
from torch import nn

from advbnn.bayes import layers
from advbnn.bayes.kl import kl_divergence
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.priors import GaussianPrior

SAMPLES = 1500

# constructor, arguments, shape of the input
CASES = {
    "linear": (layers.Linear, (5, 3), (2, 5)),
    "linear-sequence": (layers.Linear, (5, 3), (2, 4, 5)),
    "conv1d": (layers.Conv1d, (2, 3, 3), (2, 2, 6)),
    "conv2d": (layers.Conv2d, (2, 4, 3), (2, 2, 5, 5)),
    "conv3d": (layers.Conv3d, (2, 2, 2), (2, 2, 3, 3, 3)),
}


def layer_and_input(kind: str, estimator: str, **options) -> tuple[layers.VariationalLayer, torch.Tensor]:
    make, arguments, shape = CASES[kind]
    torch.manual_seed(0)
    layer = make(*arguments, estimator=estimator, init_std=0.2, **options)
    return layer, torch.randn(shape)


@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
@pytest.mark.parametrize("kind", CASES)
@torch.no_grad()
def test_every_estimator_has_the_exact_mean_and_variance(kind: str, estimator: str) -> None:
    """E[y] = W_mu x and Var[y] = W_sigma^2 x^2, within six standard errors."""
    layer, x = layer_and_input(kind, estimator)
    location = layer.net(x)
    variance = layer.run({name: (2 * s).exp() for name, _, s in layer.posterior()}, x**2)
    y = torch.stack([layer(x) for _ in range(SAMPLES)])
    assert ((y.mean(0) - location).abs() < 6 * (variance / SAMPLES).sqrt()).all()
    assert ((y.var(0) / variance - 1).abs() < 6 * math.sqrt(2 / SAMPLES)).all()


@pytest.mark.parametrize("kind", ["linear", "conv2d"])
@pytest.mark.parametrize("estimator", ["local", "flipout"])
@torch.no_grad()
def test_examples_of_a_batch_have_independent_noise(kind: str, estimator: str) -> None:
    shared, x = layer_and_input(kind, "weight")
    twice = torch.cat([x[:1], x[:1]])
    both = shared(twice)
    torch.testing.assert_close(both[0], both[1])
    own, _ = layer_and_input(kind, estimator)
    y = torch.stack([own(twice) - own.net(twice) for _ in range(SAMPLES)]).flatten(2)
    correlation = (y[:, 0] * y[:, 1]).mean() / y.square().mean()
    assert abs(correlation) < 6 / math.sqrt(SAMPLES)


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_gradients_of_the_estimators_agree_in_the_mean(estimator: str) -> None:
    def gradients(kind: str) -> torch.Tensor:
        layer, x = layer_and_input("linear", kind)
        log_stds = list(layer.log_std.parameters())
        found = [torch.autograd.grad(layer(x).square().sum(), log_stds) for _ in range(SAMPLES)]
        return torch.stack([torch.cat([g.flatten() for g in one]) for one in found])

    ours, theirs = gradients(estimator), gradients("weight")
    standard_error = ((ours.var(0) + theirs.var(0)) / SAMPLES).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 6 * standard_error).all()


@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"groups": 2}, {"padding": 1, "padding_mode": "reflect"}])
def test_with_zero_std_a_layer_is_the_plain_one(estimator: str, options: dict) -> None:
    layer, x = layer_and_input("conv2d", estimator, **options)
    with torch.no_grad():
        for s in layer.log_std.parameters():
            s.fill_(-math.inf)
        assert torch.equal(layer(x), layer.net(x))


def test_local_noise_has_a_finite_gradient_at_an_input_of_zeros() -> None:
    layer = layers.Linear(3, 2, bias=False, estimator="local")
    x = torch.zeros(1, 3, requires_grad=True)
    layer(x).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in (x, *layer.parameters()))


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_a_frozen_layer_is_one_network(estimator: str) -> None:
    layer, x = layer_and_input("conv2d", estimator)
    with layer.frozen(seed=0):
        first = layer(x)
        assert torch.equal(layer(x), first)
    assert torch.equal(layer.run(layer.sample(layer.noise(seed=0)), x), first)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(layers.BatchNorm1d, (4, 3)), (layers.BatchNorm2d, (4, 3, 2, 2)), (layers.BatchNorm3d, (4, 3, 2, 2, 2))],
)
def test_batchnorm_is_random_in_scale_and_shift_and_keeps_statistics(make, shape: tuple[int, ...]) -> None:
    layer, x = make(3), torch.randn(shape)
    assert not torch.equal(layer(x), layer(x))
    assert layer.net.num_batches_tracked == 2
    assert layer.noise_size == 6
    with pytest.raises(ValueError, match="estimator='local'.*'weight'"):
        make(3, estimator="local")


def test_assembled_and_converted_networks_are_equal() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)).eval()
    prior = GaussianPrior(std=0.1)
    first = layers.Conv2d(1, 3, 3, prior=prior), layers.BatchNorm2d(3, prior=prior), nn.ReLU()
    assembled = nn.Sequential(*first, nn.Flatten(), layers.Linear(12, 2, prior=prior)).eval()
    for index in (0, 1, 4):
        assembled[index].net.load_state_dict(plain[index].state_dict())
    converted = bayesianize(copy.deepcopy(plain), prior=prior)
    for scope in ("all", "classifier", lambda name, p: name == "1.weight"):
        torch.testing.assert_close(kl_divergence(assembled, scope), kl_divergence(converted, scope))

    x, eps = torch.rand(2, 1, 4, 4), converted.noise(seed=1)[0]
    parts = eps.split([assembled[i].noise_size for i in (0, 1, 4)])
    with ExitStack() as stack:
        for index, part in zip((0, 1, 4), parts, strict=True):
            stack.enter_context(assembled[index].frozen(weights=assembled[index].sample(part)))
        assert torch.equal(assembled(x), converted.run(converted.sample(eps), x))
