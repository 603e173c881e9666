"""Evasion by hand, and that it lowers the uncertainty of its successes."""

import math

import pytest
import torch

from advbnn.attacks import PGD
from advbnn.attacks.evasion import Evasion, EvasivePGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import predict
from advbnn.data import to_float
from trained_nets import bnn, digits


def test_the_objective_by_hand() -> None:
    # the entropy counts for the second example only, which is misclassified
    outputs = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3]], dtype=torch.float64).log()
    entropy = -sum(p * math.log(p) for p in (0.2, 0.5, 0.3))
    values = Evasion(weight=2.0)(outputs, torch.tensor([0, 0]))
    assert values.tolist() == pytest.approx([math.log(0.2), math.log(0.5) - 2 * entropy])


def test_a_logit_of_minus_infinity_removes_its_class() -> None:
    outputs, y = torch.tensor([[2.0, 1.0, 0.5], [0.2, 0.5, 0.3]], dtype=torch.float64), torch.tensor([0, 0])
    gradients = []
    for ruled_out in (torch.full((2, 1), -math.inf), torch.empty(2, 0)):
        leaf = outputs.clone().requires_grad_()
        values = Evasion()(torch.cat([leaf, ruled_out], 1), y)
        gradients.append(torch.autograd.grad(values.sum(), leaf)[0])
    torch.testing.assert_close(*gradients)


def test_its_successes_are_more_certain_than_those_of_pgd() -> None:
    x, y = to_float(digits().images), digits().labels
    threat = Threat("linf", 0.3)
    plain = PGD(threat, steps=10, eot=5)(bnn(), x, y, seed=0)
    evasive = EvasivePGD(threat, steps=10, eot=5)(bnn(), x, y, seed=0)
    assert threat.distance(evasive, x).max() <= 0.3
    plain, evasive = (predict(bnn(), z, 20, seed=1) for z in (plain, evasive))
    assert (evasive.label == y).double().mean() < 0.2
    assert evasive.entropy.mean() < 0.8 * plain.entropy.mean()
    assert evasive.mutual_information.mean() < 0.8 * plain.mutual_information.mean()


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="weight .*-1"):
        EvasivePGD(Threat("linf", 0.1), weight=-1)
