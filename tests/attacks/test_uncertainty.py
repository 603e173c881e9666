"""Attacks on uncertainty: the objective by its definition, its gradient, and that the score moves as it should."""

import math

import pytest
import torch

from advbnn.attacks.gradient import input_gradient, mean_loss
from advbnn.attacks.threat import Threat
from advbnn.attacks.uncertainty import Uncertainty, UncertaintyPGD, entropy
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.prediction import predict
from advbnn.data import to_float
from advbnn.randomness import seeded
from trained_nets import bnn, digits

THREAT, K = Threat("linf", 0.1), 6


def test_the_entropy_by_hand() -> None:
    outputs = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]], dtype=torch.float64).log()
    assert entropy(outputs).tolist() == pytest.approx([1.5 * math.log(2), 0])


@pytest.mark.parametrize("score", ["entropy", "mutual_information"])
@pytest.mark.parametrize("direction", ["raise", "lower"])
def test_objective_and_gradient_are_those_of_one_graph_over_all_samples(score: str, direction: str) -> None:
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.Tanh(), torch.nn.Linear(9, 4)).double()
    model, objective = bayesianize(net, init_std=0.5), Uncertainty(score=score, direction=direction)
    x, y = torch.rand(3, 5, dtype=torch.float64), torch.tensor([0, 3, 1])
    with seeded(0):
        found = input_gradient(model, x, y, objective, K)
    with seeded(0), seeded(int(torch.randint(2**62, ()).item())):  # which the two passes draw first
        leaf = x.clone().requires_grad_()
        p = torch.stack([model(leaf) for _ in range(K)]).softmax(-1)
    total, expected = (-(q * q.log()).sum(-1) for q in (p.mean(0), p))
    values = total - expected.mean(0) if score == "mutual_information" else total
    values = values if direction == "raise" else -values
    torch.testing.assert_close(found.values, values.detach())
    torch.testing.assert_close(found.gradient, torch.autograd.grad(values.sum(), leaf)[0])
    outputs = [q.detach().log() for q in p]
    torch.testing.assert_close(mean_loss(outputs, y, objective).values, values.detach())


@pytest.mark.parametrize("score", ["entropy", "mutual_information"])
def test_raises_and_lowers_the_score_of_fresh_samples(score: str) -> None:
    x, y = to_float(digits().images[:60]), digits().labels[:60]
    means = {}
    for direction in ("lower", "raise"):
        x_adv = UncertaintyPGD(THREAT, steps=5, eot=5, score=score, direction=direction)(bnn(), x, y, seed=0)
        assert THREAT.distance(x_adv, x).max() <= THREAT.eps
        means[direction] = getattr(predict(bnn(), x_adv, 20, seed=1), score).mean()
    clean = getattr(predict(bnn(), x, 20, seed=1), score).mean()
    assert means["lower"] < 0.9 * clean and 1.1 * clean < means["raise"]


def test_refusals() -> None:
    for settings, message in (
        ({"score": "doubt"}, "score='doubt'"),
        ({"direction": "up"}, "direction='up'"),
        ({"score": "mutual_information", "eot": 1}, "eot of 2 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            UncertaintyPGD(THREAT, **settings)
