"""The local Lipschitz value against analytic gradients, and its records against the functions and by simulation."""

import json
import math

import pytest
import torch
from torch import Tensor, nn

from advbnn import bayesianize, data
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.data import to_float
from advbnn.evaluation.lipschitz import lipschitz_records, local_lipschitz
from advbnn.randomness import scoring_seed, seeded
from trained_nets import bnn, digits, net

DUAL = {"linf": 1, "l2": 2, "l1": math.inf}
FIELDS = {"mean", "sd", "min", "max", "se", "se_images", "se_samples"}


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, 4).double()


X = torch.rand(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 3, 0])


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_linear_softmax_has_the_analytic_value(norm: str) -> None:
    model = linear()
    # grad_x CE = W^T (p - onehot(y))
    residual = model(X).softmax(1) - nn.functional.one_hot(Y, 4)
    expected = 0.3 * torch.linalg.vector_norm(residual @ model.weight, DUAL[norm], dim=1)
    for found in local_lipschitz(model, X, Y, Threat(norm, 0.3), samples=2):
        torch.testing.assert_close(found, expected)


def test_random_networks_are_averaged_over_weight_samples() -> None:
    model = bayesianize(nn.Sequential(linear()), init_std=0.5).train()
    gradients = []
    for eps in model.noise(3, seed=4):
        x = X.clone().requires_grad_()
        loss = nn.functional.cross_entropy(model.run(model.sample(eps), x), Y, reduction="sum")
        gradients.append(torch.autograd.grad(loss, x)[0])
    stacked, state = torch.stack(gradients), torch.get_rng_state()
    first_order, per_sample = local_lipschitz(model, X, Y, Threat("linf", 0.1), samples=3, seed=4)
    torch.testing.assert_close(first_order, 0.1 * stacked.mean(0).abs().sum(1))
    torch.testing.assert_close(per_sample, 0.1 * stacked.abs().sum(2).mean(0))
    assert (per_sample >= first_order).all()
    assert model.training and torch.equal(torch.get_rng_state(), state)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_a_random_state_of_ones_own_is_drawn_anew_for_every_sample() -> None:
    class Kept(nn.Module):
        """Noise that is drawn by `resample` alone."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = linear(), torch.ones(())

        def resample(self, seed: int) -> None:
            self.scale = torch.rand((), generator=torch.Generator().manual_seed(seed)) * 4 - 2

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.scale * x)

    first_order, per_sample = local_lipschitz(Kept(), X, Y, Threat("linf", 0.1), samples=10, seed=0)
    assert (per_sample > 1.05 * first_order).all()  # gradients of both signs


def test_records_of_train_and_test() -> None:
    attack = PGD(Threat("linf", 0.05), steps=5)
    train, test = lipschitz_records(bnn(), data.load("digits"), attack, samples=3, seeds=2, rows=range(120))
    assert (train.name, test.name, test.kind) == ("train", "test", "lipschitz")
    assert (test.threat, test.samples) == (attack.threat, 3)
    for record in (train, test):
        assert record.details["per_sample"]["mean"] >= record.details["first_order"]["mean"] > 0
        assert record.details["increase"]["mean"] > 0
        assert all(set(value) == FIELDS for value in record.details.values())
        json.dumps(record.to_dict(), allow_nan=False)


def test_records_are_what_the_functions_give() -> None:
    attack = PGD(Threat("linf", 0.05), steps=2, random_start=False)
    details = lipschitz_records(net(), digits(), attack, samples=1, seeds=1)[0].details
    x, y = to_float(digits().images), digits().labels
    first_order = local_lipschitz(net(), x, y, attack.threat, 1)[0]
    assert details["first_order"]["mean"] == pytest.approx(first_order.mean().item(), rel=1e-4)
    assert details["first_order"]["se"] == pytest.approx((first_order.std() / math.sqrt(120)).item(), rel=1e-4)
    assert details["first_order"]["se_samples"] == 0
    after, before = (nn.functional.cross_entropy(net()(z), y).item() for z in (attack(net(), x, y), x))
    assert details["increase"]["mean"] == pytest.approx(after - before, rel=1e-3)


def test_the_loss_is_measured_on_the_scoring_samples() -> None:
    attack = PGD(Threat("linf", 0.05), steps=2)
    record = lipschitz_records(bnn(), {"some": digits()}, attack, samples=3, seeds=(4,))[0]
    x, y = to_float(digits().images), digits().labels
    with seeded(scoring_seed(4)), torch.no_grad():
        expected = sum(nn.functional.cross_entropy(bnn()(x), y).item() for _ in range(3)) / 3
    assert record.details["loss"]["mean"] == pytest.approx(expected, rel=1e-4)


def test_the_standard_error_includes_the_weight_samples() -> None:
    attack, seeds = PGD(Threat("linf", 0.05), steps=1), 24
    (record,) = lipschitz_records(bnn(), digits(), attack, samples=5, seeds=seeds)
    for name, value in record.details.items():
        assert value["se"] == pytest.approx(math.hypot(value["se_images"], value["se_samples"]))
        # the sd of 24 seeds has a relative standard error of 1 / sqrt(2 x 23) = 0.15
        assert 0.55 < value["sd"] / (math.sqrt(seeds) * value["se_samples"]) < 1.45, name


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_opposite_gradients_have_an_uncertain_mean_however_many_images(norm: str) -> None:
    class Coin(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            sign = 2.0 * torch.randint(2, ()) - 1 + 0.1
            return torch.stack([sign * x.sum(1), torch.zeros(len(x))], 1)

    examples = data.from_tensors(torch.full((200, 3), 0.5), torch.zeros(200, dtype=torch.int64), classes=2)
    (record,) = lipschitz_records(Coin(), examples, PGD(Threat(norm, 0.1), steps=1), samples=20, seeds=1)
    value = record.details["first_order"]
    assert value["se_images"] < 1e-6 < value["se_samples"]
    assert value["se"] > value["mean"] / 3
