"""Langevin dynamics against posteriors that are known, and the bank of samples as a random network."""

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from advbnn.predict import Ensemble, predict
from advbnn.priors import GaussianPrior, ScaleMixturePrior
from advbnn.rng import seeded
from advbnn.sgld import PSGLD, SGLD, SampleBank, keep, negative_log_prior, step_size
from zoo import ZOO

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


def train(net: nn.Module, optimizer: Optimizer, steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        x = torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


def small_net(norm: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5) if norm else nn.Tanh(), nn.Linear(5, 3))


def test_at_temperature_zero_it_is_plain_descent_bit_for_bit() -> None:
    for kind in ("sgld", "psgld"):
        cold, plain = small_net(), small_net()
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
    net = small_net()
    optimizer = make(net.parameters())
    torch.manual_seed(4)
    train(net, optimizer, 5)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, file)
    expected = train(net, optimizer, 6)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = small_net()
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
    net = small_net()
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


def randomise(net: nn.Module) -> None:
    with torch.no_grad():
        for tensor in (*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())):
            tensor.copy_(torch.rand_like(tensor) + 0.1)


def filled_bank(net: nn.Module, size: int = 3) -> tuple[SampleBank, list[nn.Module]]:
    """A bank and, as plain networks, the samples in it."""
    bank, twins = SampleBank(net), []
    for _ in range(size):
        randomise(net)
        bank.add()
        twins.append(copy.deepcopy(net))
    randomise(net)
    return bank, twins


@pytest.mark.parametrize("kind", ZOO)
def test_each_sample_is_the_stored_network_bit_for_bit(kind: str, tmp_path) -> None:
    case = ZOO[kind]
    # torch chooses other recurrent kernels for weights that ask for gradients, and stored samples never ask
    bank, twins = filled_bank(case.net().eval().requires_grad_(False))
    x = case.x()
    own = {name: p.clone() for name, p in bank.net.state_dict().items()}

    save_model(bank, str(tmp_path / "bank.safetensors"))
    stored = SampleBank(case.net().eval().requires_grad_(False))
    load_model(stored, str(tmp_path / "bank.safetensors"))
    loaded = SampleBank(case.net().eval().requires_grad_(False))
    loaded.load_state_dict(bank.state_dict())
    with bank.frozen(index=0):
        copies = [bank, stored, loaded, copy.deepcopy(bank), pickle.loads(pickle.dumps(bank))]
    for one in copies:
        assert len(one) == 3
        for index, twin in enumerate(twins):
            with one.frozen(index=index):
                assert torch.equal(one(x), twin(x))
    assert all(torch.equal(own[name], value) for name, value in bank.net.state_dict().items())


def test_every_call_chooses_anew_from_the_default_generator() -> None:
    bank, twins = filled_bank(small_net().eval(), size=4)
    x = torch.rand(2, 4)
    outputs = [twin(x) for twin in twins]
    with seeded(0):
        calls = [bank(x) for _ in range(400)]
        after = torch.rand(())
    with seeded(0):
        assert all(torch.equal(bank(x), call) for call in calls)
        assert torch.equal(torch.rand(()), after)
    chosen = torch.tensor([[torch.equal(call, output) for output in outputs] for call in calls])
    assert chosen.sum(1).eq(1).all()
    assert chosen.sum(0).min() > 100 - 5 * (400 * 0.25 * 0.75) ** 0.5  # uniform within 5 standard errors


def test_frozen_is_one_network_and_nests() -> None:
    bank, twins = filled_bank(small_net().eval(), size=5)
    x = torch.rand(2, 4)
    for seed in range(5):
        with seeded(seed):
            first = bank(x)
        state = torch.get_rng_state()
        with bank.frozen(seed):
            assert torch.equal(bank(x), first) and torch.equal(bank(x), first)
        assert torch.equal(torch.get_rng_state(), state)
    with bank.frozen(index=1) as same:
        assert same is bank
        with bank.frozen(index=2):
            assert torch.equal(bank(x), twins[2](x))
        assert torch.equal(bank(x), twins[1](x))
        assert bank._frozen is not None and copy.deepcopy(bank)._frozen is None
    with pytest.raises(RuntimeError, match="inside"), bank.frozen(index=1):
        raise RuntimeError("inside")
    assert bank._frozen is None


def test_predict_and_ensemble_average_over_the_samples() -> None:
    bank, twins = filled_bank(small_net(), size=3)
    x = torch.rand(6, 4)
    for twin in twins:
        twin.eval()
    mean = torch.stack([twin(x).softmax(-1) for twin in twins]).mean(0)
    prediction = predict(bank, x, samples=500, seed=0)
    torch.testing.assert_close(prediction.probs, mean, atol=0.05, rtol=0)
    assert bank.training and bank.net[1].training
    bank.eval()
    assert torch.equal(Ensemble(bank, samples=5)(x), Ensemble(bank, samples=5)(x))


def test_input_gradients_are_those_of_the_sample_and_weights_get_none() -> None:
    bank, twins = filled_bank(small_net().eval())
    x = torch.rand(2, 4, requires_grad=True)
    with bank.frozen(index=1):
        (gradient,) = torch.autograd.grad(bank(x).sum(), x)
    (expected,) = torch.autograd.grad(twins[1](x).sum(), x)
    assert torch.equal(gradient, expected)
    bank(x).sum().backward()
    assert all(p.grad is None for p in bank.parameters())
    assert list(bank.parameters()) == list(bank.net.parameters())


def test_training_mode_uses_the_batch_and_leaves_stored_statistics_alone() -> None:
    bank, twins = filled_bank(small_net())
    before = {name: value.clone() for name, value in bank.state_dict().items()}
    x = torch.rand(8, 4)
    with bank.frozen(index=2):
        torch.testing.assert_close(bank(x), twins[2].train()(x))
    assert all(torch.equal(before[name], value) for name, value in bank.state_dict().items())


def test_a_bank_loads_exactly_what_was_saved() -> None:
    small, large = filled_bank(small_net(), size=2)[0], filled_bank(small_net(), size=4)[0]
    saved = {name: value.clone() for name, value in small.state_dict().items()}
    large.load_state_dict(saved)
    assert len(large) == 2
    assert all(torch.equal(saved[name], value) for name, value in large.state_dict().items())
    inside = nn.ModuleDict({"bank": SampleBank(small_net())})
    inside.load_state_dict({f"bank.{name}": value for name, value in saved.items()})
    assert len(inside["bank"]) == 2
    assert "stored=2" in repr(small)


def test_a_bank_follows_its_type_and_takes_samples_of_other_networks() -> None:
    bank, _ = filled_bank(small_net().eval())
    assert bank.double()(torch.rand(2, 4, dtype=torch.float64)).dtype == torch.float64
    other = small_net().double().eval()
    bank.add(other)
    x = torch.rand(2, 4, dtype=torch.float64)
    with bank.frozen(index=3):
        assert torch.equal(bank(x), other(x))


class Checkpointed(nn.Module):
    """A network that saves memory by running its body twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small_net(norm=False)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


def test_what_a_bank_cannot_do_is_refused() -> None:
    x = torch.rand(2, 4)
    with pytest.raises(TypeError, match="net"):
        SampleBank("vgg16")  # type: ignore[arg-type]
    bank = SampleBank(small_net())
    with pytest.raises(ValueError, match="no sample"):
        bank(x)
    with pytest.raises(ValueError, match="no sample"), bank.frozen(0):
        pass
    with pytest.raises(ValueError, match=r"'1\.bias'"):
        bank.add(small_net(norm=False))
    bank.add()
    with pytest.raises(ValueError, match="index"):
        bank.sample(1)
    with pytest.raises(ValueError, match="not both"), bank.frozen(0, index=0):
        pass
    checkpointed = SampleBank(Checkpointed())
    checkpointed.add()
    with pytest.raises(RuntimeError, match="checkpointing"):
        checkpointed(x)


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
