"""Draws of the weights: their noise, their moments, their gradients, and freezing them."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

from advbnn.bayes.kl import kl_divergence
from advbnn.bayes.mean_field import bayesianize
from advbnn.modules import without_parameter_gradients
from advbnn.randomness import seeded
from small_nets import conv_net, images
from zoo import ZOO

zoo = pytest.mark.parametrize("kind", ZOO)


@zoo
def test_same_noise_gives_the_same_bits_and_every_path_agrees(kind: str) -> None:
    case = ZOO[kind]
    bnn, x = bayesianize(case.net()).eval(), case.x()
    eps = bnn.noise(seed=3)[0]
    with torch.no_grad():
        with bnn.frozen(eps=eps):
            first = bnn(x)
        with bnn.frozen(seed=3):
            assert torch.equal(bnn(x), first)
        assert torch.equal(bnn.run(bnn.sample(eps), x), first)
    with seeded(3):
        recording = bnn.sample()
    with seeded(3), without_parameter_gradients(bnn):
        bare = bnn.sample()
    for name, weight in bnn.sample(eps).items():
        assert torch.equal(recording[name], weight)
        assert torch.equal(bare[name], weight)
    with seeded(3), torch.no_grad():
        assert torch.equal(bnn(x), first)


def test_draws_have_the_posterior_mean_and_spread() -> None:
    bnn = bayesianize(conv_net(), init_std=0.3)
    draws = [bnn.sample() for _ in range(2000)]
    for name, mu, s in bnn.posterior():
        w = torch.stack([d[name] for d in draws]).detach()
        standard_error = 0.3 / math.sqrt(len(draws))
        assert (w.mean(0) - mu).abs().max() < 5.5 * standard_error
        assert ((w.std(0) / s.exp()) - 1).abs().max() < 0.12
    flat = torch.stack([torch.cat([w.flatten() for w in d.values()]) for d in draws[:400]])
    correlation = torch.corrcoef(flat.T[:60])
    assert (correlation - torch.eye(60)).abs().max() < 0.25  # coordinates are independent


@pytest.mark.parametrize("passes", [2, 10, 100])
def test_many_forward_passes_before_one_backward_give_exact_gradients(passes: int) -> None:
    bnn, x = bayesianize(nn.Linear(3, 2, dtype=torch.float64)), torch.rand(4, 3, dtype=torch.float64)
    with seeded(7):
        torch.stack([bnn(x).square().sum() for _ in range(passes)]).mean().backward()
    grads = {name: (mu.grad, s.grad) for name, mu, s in bnn.posterior()}
    bnn.zero_grad()
    reference = torch.stack(
        [functional_call(bnn.net, bnn.sample(e), (x,)).square().sum() for e in bnn.noise(passes, seed=7)]
    )
    reference.mean().backward()
    for name, mu, s in bnn.posterior():
        torch.testing.assert_close(grads[name], (mu.grad, s.grad), rtol=1e-12, atol=1e-12)


def test_gradients_equal_the_reparameterisation_formula() -> None:
    """Eq. 11: d/dmu = dh/dw and d/ds = exp(s) * eps * dh/dw."""
    bnn, x = bayesianize(conv_net().double()), images().double()
    eps = bnn.noise(seed=2)[0]
    with seeded(2):
        bnn(x).square().sum().backward()
    weights = {name: w.detach().requires_grad_() for name, w in bnn.sample(eps).items()}
    by_weight = torch.autograd.grad(functional_call(bnn.net, weights, (x,)).square().sum(), list(weights.values()))
    pieces = eps.split([w.numel() for w in weights.values()])
    for (_, mu, s), grad, piece in zip(bnn.posterior(), by_weight, pieces, strict=True):
        torch.testing.assert_close(mu.grad, grad)
        torch.testing.assert_close(s.grad, s.exp() * piece.view(s.shape).double() * grad)


def test_noise_rows_do_not_depend_on_how_many_are_drawn() -> None:
    bnn = bayesianize(conv_net())
    assert torch.equal(bnn.noise(5, seed=1)[:3], bnn.noise(3, seed=1))
    assert not torch.equal(bnn.noise(seed=1), bnn.noise(seed=2))
    assert bnn.noise(4).shape == (4, bnn.noise_size)


def test_antithetic_noise_comes_in_opposite_pairs() -> None:
    bnn = bayesianize(conv_net())
    eps = bnn.noise(6, seed=0, antithetic=True)
    assert torch.equal(eps[0::2], -eps[1::2])
    assert not torch.equal(eps[0], eps[2])


def test_seeded_noise_and_frozen_leave_the_global_random_state_alone() -> None:
    bnn = bayesianize(conv_net())
    before = torch.get_rng_state()
    bnn.noise(3, seed=1)
    with bnn.frozen(seed=4):
        bnn(images())
    assert torch.equal(torch.get_rng_state(), before)


def test_frozen_blocks_nest_and_end_when_the_block_raises() -> None:
    bnn, x = bayesianize(conv_net()), images()
    with bnn.frozen(seed=1) as same:
        assert same is bnn
        outer = bnn(x)
        with bnn.frozen(seed=2):
            assert not torch.equal(bnn(x), outer)
        assert torch.equal(bnn(x), outer)
        assert not outer.requires_grad
    with pytest.raises(KeyError), bnn.frozen(seed=1):
        raise KeyError
    assert not torch.equal(bnn(x), bnn(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_precisions(dtype: torch.dtype) -> None:
    bnn, x = bayesianize(conv_net().to(dtype)), images().to(dtype)
    with seeded(0):
        out = bnn(x)
    assert out.dtype == dtype
    out.float().square().sum().backward()
    assert all(s.grad is not None and s.grad.dtype == dtype for s in bnn.log_std.parameters())
    assert kl_divergence(bnn).dtype in (torch.float32, torch.float64)
    with bnn.frozen(seed=0):
        assert torch.equal(bnn(x), out)


def test_parameters_of_several_precisions_in_one_network() -> None:
    net = nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.Flatten(), nn.Linear(4, 2).bfloat16())
    net[2].bias = nn.Parameter(net[2].bias.float())
    bnn = bayesianize(net, where=lambda name, p: True)
    dtypes = {name: w.dtype for name, w in bnn.sample().items()}
    assert dtypes["2.bias"] == torch.float32
    assert dtypes["0.weight"] == torch.bfloat16


def test_refuses_noise_of_another_length() -> None:
    bnn = bayesianize(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"eps.*6 random weights.*\(5,\)"):
        bnn.sample(torch.zeros(5))
    with pytest.raises(ValueError, match="eps"), bnn.frozen(eps=torch.zeros(7)):
        pass
    with pytest.raises(ValueError, match="not both"), bnn.frozen(seed=1, eps=torch.zeros(6)):
        pass
    with pytest.raises(ValueError, match="k must be at least 1"):
        bnn.noise(0)
    with pytest.raises(ValueError, match="even"):
        bnn.noise(3, antithetic=True)
