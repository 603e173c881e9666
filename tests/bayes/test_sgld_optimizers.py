"""SGLD and PSGLD as optimizers: their formula, groups, schedules and state, and the prior."""

import io
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR

from advbnn.bayes.priors import GaussianPrior, ScaleMixturePrior
from advbnn.bayes.sgld import PSGLD, SGLD, keep, negative_log_prior, step_size
from advbnn.randomness import seeded
from small_nets import dense_net


def train(net: nn.Module, optimizer: Optimizer, steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        x = torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


def test_at_temperature_zero_it_is_plain_descent_bit_for_bit() -> None:
    for kind in ("sgld", "psgld"):
        cold, plain = dense_net(), dense_net()
        langevin: Optimizer
        descent: Optimizer
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
        assert torch.equal(torch.get_rng_state(), random_state), "no noise is due, yet some was drawn"
        for a, b in zip(weights, train(plain, descent, 20), strict=True):
            assert torch.equal(a, b), kind


def test_one_update_is_the_formula() -> None:
    start, gradient = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 4.0])
    with seeded(6):
        xi = torch.randn(2)
    w = start.clone().requires_grad_()
    w.grad = gradient.clone()
    with seeded(6):
        SGLD([w], 0.1, data_size=50, temperature=0.5).step()
    torch.testing.assert_close(w.detach(), start - 0.1 * gradient + math.sqrt(2 * 0.1 * 0.5 / 50) * xi)
    w = start.clone().requires_grad_()
    w.grad = gradient.clone()
    with seeded(6):
        PSGLD([w], 0.1, data_size=50, burn_in=1, alpha=0.9, eps=0.01).step()
    v = 0.9 * gradient.square().mean() + 0.1 * gradient**2
    g = 1 / (v.sqrt() + 0.01)
    torch.testing.assert_close(w.detach(), start - 0.1 * g * gradient + (2 * 0.1 / 50 * g).sqrt() * xi)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGLD(p, 0.05, data_size=20),
        lambda p: PSGLD(p, 0.01, data_size=20, burn_in=8),  # the resumed part begins before it and ends after
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
    for a, b in zip(train(again, optimizer, 6), expected, strict=True):
        assert torch.equal(a, b)


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


def test_groups_and_schedules_set_the_step_and_a_closure_gives_the_loss() -> None:
    still, moving = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    groups = [{"params": [still], "lr": 1e-30}, {"params": [moving]}]
    optimizer = SGLD(groups, 1.0, data_size=10)
    schedule = LambdaLR(optimizer, lambda t: step_size(t, a=0.5, b=10.0))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (still + moving).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 8
    schedule.step()
    assert torch.equal(still.detach(), torch.ones(2))
    assert not torch.equal(moving.detach(), torch.ones(2))
    assert optimizer.param_groups[1]["lr"] == 0.5 * 11**-0.55


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"lr": 0.0}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"data_size": 0}, "data_size"),
        ({"temperature": -1.0}, "temperature"),
        ({"burn_in": 0}, "burn_in"),
        ({"alpha": 1.0}, "alpha"),
        ({"eps": 0.0}, "eps"),
    ],
)
def test_bad_settings_are_refused(bad: dict[str, float], named: str) -> None:
    good = {"lr": 0.1, "data_size": 10, "burn_in": 5}
    with pytest.raises(ValueError, match=named):
        PSGLD([torch.zeros(1, requires_grad=True)], **{**good, **bad})
    if named in ("lr", "data_size", "temperature"):
        with pytest.raises(ValueError, match=named):
            SGLD([torch.zeros(1, requires_grad=True)], **{"lr": 0.1, "data_size": 10, **bad})


@given(burn_in=st.integers(0, 30), every=st.integers(1, 10), total=st.integers(1, 60))
def test_thinning_keeps_every_nth_state_after_the_burn_in(burn_in: int, every: int, total: int) -> None:
    kept = [step for step in range(total + 1) if keep(step, burn_in=burn_in, every=every)]
    assert kept == list(range(burn_in + every, total + 1, every))


def test_bad_thinning_and_schedules_are_refused() -> None:
    with pytest.raises(ValueError, match="burn_in"):
        keep(1, burn_in=-1, every=1)
    with pytest.raises(ValueError, match="every"):
        keep(1, burn_in=0, every=0)
    with pytest.raises(ValueError, match="gamma"):
        step_size(0, a=1, b=1, gamma=0.5)


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
