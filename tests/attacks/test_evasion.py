import math

import pytest
import torch

from advbnn.attacks import PGD
from advbnn.attacks.evasion import Evasion, EvasivePGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import predict
from advbnn.data import to_float
from judged import bnn, digits


def test_the_objective_by_hand() -> None:
    # the first is still right, so that its entropy does not count; the second is wrong
    outputs = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3]], dtype=torch.float64).log()
    entropy = -sum(p * math.log(p) for p in (0.2, 0.5, 0.3))
    values = Evasion(weight=2.0)(outputs, torch.tensor([0, 0]))
    assert values.tolist() == pytest.approx([math.log(0.2), math.log(0.5) - 2 * entropy])


def test_certainty_of_a_wrong_class_is_the_best_there_is() -> None:
    certain = torch.tensor([[-50.0, 50.0, -50.0]])
    assert Evasion()(certain, torch.tensor([0])).item() == pytest.approx(0, abs=1e-6)


def test_a_class_that_is_ruled_out_counts_as_if_it_were_not_there() -> None:
    outputs, y = torch.tensor([[2.0, 1.0, 0.5], [0.2, 0.5, 0.3]], dtype=torch.float64), torch.tensor([0, 0])
    gradients = []
    for ruled_out in (torch.full((2, 1), -math.inf), torch.empty(2, 0)):
        leaf = outputs.clone().requires_grad_()
        values = Evasion()(torch.cat([leaf, ruled_out], 1), y)
        gradients.append(torch.autograd.grad(values.sum(), leaf)[0])
    torch.testing.assert_close(*gradients)


def test_looks_more_certain_than_plain_pgd_and_stays_in_the_ball() -> None:
    x, y = to_float(digits().images), digits().labels
    threat = Threat("linf", 0.3)
    plain = PGD(threat, steps=10, eot=5)(bnn(), x, y, seed=0)
    evasive = EvasivePGD(threat, steps=10, eot=5)(bnn(), x, y, seed=0)
    assert threat.distance(evasive, x).max() <= 0.3
    seen, unseen = (predict(bnn(), z, 20, seed=1) for z in (plain, evasive))
    assert (unseen.label == y).double().mean() < 0.1
    assert unseen.entropy.mean() < 0.7 * seen.entropy.mean()
    assert unseen.mutual_information.mean() < 0.7 * seen.mutual_information.mean()


def test_its_repr_is_its_identity_and_bad_weights_are_refused() -> None:
    assert "weight=2.0" in repr(EvasivePGD(Threat("linf", 0.1), weight=2.0))
    with pytest.raises(ValueError, match="weight must be 0 or more, got -1"):
        EvasivePGD(Threat("linf", 0.1), weight=-1)
