"""Transfer: crafted on a source and used against any target."""

import pytest
import torch

from advbnn import attacks
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import predict

PGD = attacks.PGD(Threat("linf", 0.15), steps=10)


def test_it_is_the_attack_on_the_source(net, bnn, digits):
    x, y = digits.x[:20], digits.y[:20]
    transfer = attacks.Transfer(net, PGD)
    assert torch.equal(transfer(bnn, x, y, seed=1), PGD(net, x, y, seed=1))
    assert transfer.run(bnn, x, y, seed=1).queries.tolist() == [10] * 20
    assert transfer.threat is PGD.threat
    assert repr(transfer) == f"Transfer(attack={PGD!r})"


def test_the_mean_network_is_a_source_in_one_call(bnn, digits):
    x, y = digits.x[:50], digits.y[:50]
    transfer = attacks.Transfer.from_mean(bnn, PGD)
    x_adv = transfer(bnn, x, y, seed=1)
    assert torch.equal(x_adv, PGD(bnn.net, x, y, seed=1))
    before, after = ((predict(bnn, z, 20, seed=2).label == y).float().mean() for z in (x, x_adv))
    assert after < before - 0.2


def test_a_source_without_a_mean_is_refused(net):
    with pytest.raises(ValueError, match="'mean' .*Bayesian.*Sequential.*Transfer"):
        attacks.Transfer.from_mean(net, PGD)
