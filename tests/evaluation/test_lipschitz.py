import json
import math

import pytest
import torch
from torch import Tensor, nn

from advbnn import bayesianize, data
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.data import to_float
from advbnn.evaluation.lipschitz import expected_loss, lipschitz_records, local_lipschitz
from advbnn.randomness import scoring_seed
from judged import bnn, digits, net

DUAL = {"linf": 1, "l2": 2, "l1": math.inf}


FIELDS = {"mean", "sd", "min", "max", "se", "se_images", "se_draws"}


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
    first_order, per_draw = local_lipschitz(model, X, Y, Threat(norm, 0.3), samples=2)
    torch.testing.assert_close(first_order, expected)
    torch.testing.assert_close(per_draw, expected)


def test_is_the_slope_of_the_worst_case() -> None:
    # for a small radius the loss grows by just this much, and by no more, at the best of all perturbations
    model, threat = linear(), Threat("linf", 1e-5, (-1.0, 2.0))
    gradient = torch.autograd.functional.jacobian(lambda x: nn.functional.cross_entropy(model(x), Y), X)
    before, grown = (expected_loss(model, x, Y, 1) for x in (X, X + threat.eps * gradient.sign()))
    first_order = local_lipschitz(model, X, Y, threat, samples=1)[0]
    torch.testing.assert_close(grown - before, first_order, rtol=1e-3, atol=1e-12)


def test_random_networks_are_averaged_over_their_draws() -> None:
    model, threat = bayesianize(linear(), init_std=0.5), Threat("linf", 0.1)
    gradients = []
    for eps in model.noise(3, seed=4):
        x = X.clone().requires_grad_()
        loss = nn.functional.cross_entropy(model.run(model.sample(eps), x), Y, reduction="sum")
        gradients.append(torch.autograd.grad(loss, x)[0])
    stacked = torch.stack(gradients)
    first_order, per_draw = local_lipschitz(model, X, Y, threat, samples=3, seed=4)
    torch.testing.assert_close(first_order, 0.1 * stacked.mean(0).abs().sum(1))
    torch.testing.assert_close(per_draw, 0.1 * stacked.abs().sum(2).mean(0))
    assert (per_draw >= first_order).all()


def test_expected_loss_is_the_mean_over_draws() -> None:
    model = bayesianize(linear(), init_std=0.5)
    losses = [
        nn.functional.cross_entropy(model.run(model.sample(eps), X), Y, reduction="none")
        for eps in model.noise(4, seed=2)
    ]
    torch.testing.assert_close(expected_loss(model, X, Y, 4, seed=2), torch.stack(losses).mean(0))


def test_model_and_random_state_are_left_alone() -> None:
    model = bayesianize(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))).train()
    state = torch.get_rng_state()
    local_lipschitz(model, X.float(), Y, Threat("linf", 0.1), samples=2, seed=0)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_records_of_train_and_test() -> None:
    splits = data.load("digits")
    attack = PGD(Threat("linf", 0.05), steps=5)
    train, test = lipschitz_records(bnn(), splits, attack, samples=3, seeds=2, rows=range(120))
    assert (train.name, test.name, test.kind) == ("train", "test", "lipschitz")
    assert (test.threat, test.samples) == (attack.threat, 3)
    for record in (train, test):
        assert record.details["per_sample"]["mean"] >= record.details["first_order"]["mean"] > 0
        assert record.details["increase"]["mean"] > 0
        assert all(set(value) == FIELDS for value in record.details.values())
        json.dumps(record.to_dict(), allow_nan=False)
    assert test.details["loss"]["mean"] > train.details["loss"]["mean"]


def test_records_are_what_the_functions_give() -> None:
    attack = PGD(Threat("linf", 0.05), steps=2, random_start=False)
    record = lipschitz_records(net(), digits(), attack, samples=1, seeds=1)[0]
    x, y = to_float(digits().images), digits().labels
    first_order = local_lipschitz(net(), x, y, attack.threat, 1)[0]
    assert record.details["first_order"]["mean"] == pytest.approx(first_order.mean().item(), rel=1e-5)
    assert record.details["first_order"]["se"] == pytest.approx((first_order.std() / math.sqrt(120)).item(), rel=1e-5)
    assert record.details["first_order"]["se_draws"] == 0
    x_adv = attack(net(), x, y)
    increase = expected_loss(net(), x_adv, y, 1) - expected_loss(net(), x, y, 1)
    assert record.details["increase"]["mean"] == pytest.approx(increase.mean().item(), rel=1e-4)


def test_the_increase_is_measured_on_the_scoring_draws() -> None:
    attack = PGD(Threat("linf", 0.05), steps=2)
    record = lipschitz_records(bnn(), {"some": digits()}, attack, samples=3, seeds=(4,))[0]
    x, y = to_float(digits().images), digits().labels
    expected = expected_loss(bnn(), x, y, 3, scoring_seed(4)).mean().item()
    assert record.details["loss"]["mean"] == pytest.approx(expected, rel=1e-5)


def test_the_standard_error_holds_the_luck_of_the_draws() -> None:
    attack, seeds = PGD(Threat("linf", 0.05), steps=1), 24
    (record,) = lipschitz_records(bnn(), digits(), attack, samples=5, seeds=seeds)
    for name, value in record.details.items():
        assert value["se"] == pytest.approx(math.hypot(value["se_images"], value["se_draws"]))
        # the means of 24 seeds, each of five draws of its own, show how much draws can do
        assert 0.7 < value["sd"] / (math.sqrt(seeds) * value["se_draws"]) < 1.4, name


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_one_draw_is_as_uncertain_as_the_gradients_differ(norm: str) -> None:
    # draws of opposite gradients: their mean is known as badly as one of them, however many images there are
    class Coin(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            sign = 2.0 * torch.randint(2, ()) - 1 + 0.1
            return torch.stack([sign * x.sum(1), torch.zeros(len(x))], 1)

    examples = data.from_tensors(torch.full((200, 3), 0.5), torch.zeros(200, dtype=torch.int64), classes=2)
    (record,) = lipschitz_records(Coin(), examples, PGD(Threat(norm, 0.1), steps=1), samples=20, seeds=1)
    steepness = record.details["first_order"]
    assert steepness["se_images"] < 1e-6 < steepness["se_draws"]
    assert steepness["se"] > steepness["mean"] / 3
