"""An attacker that knows the seed of the deployed ensemble."""

import pytest
import torch

from advbnn.attacks import PGD, FixedRandomness
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import Ensemble
from advbnn.evaluation import evaluate
from trained_nets import bnn, digits, net

THREAT = Threat("linf", 0.08)


def test_it_is_pgd_on_the_ensemble_of_that_seed(digits):
    x, y = digits.x[:20], digits.y[:20]
    found = FixedRandomness(THREAT, steps=5, samples=4, ensemble_seed=7)(bnn(), x, y, seed=0)
    known = PGD(THREAT, steps=5, pick="best")(Ensemble(bnn(), 4, 7), x, y, seed=0)
    assert torch.equal(found, known)
    other = FixedRandomness(THREAT, steps=5, samples=4, ensemble_seed=8)(bnn(), x, y, seed=0)
    assert not torch.equal(found, other)


def test_evaluations_let_it_attack_the_very_ensemble_that_they_score():
    few = digits().subset(range(100))
    attack = FixedRandomness(THREAT, steps=20)
    # a single weight sample, so that its secrecy matters most
    known = evaluate(bnn(), few, attack, samples=1, seeds=2)[0].accuracy
    unknown = evaluate(bnn(), few, PGD(THREAT, steps=20, pick="best"), samples=1, seeds=2)[0].accuracy
    assert known < unknown - 0.05


def test_on_a_deterministic_network_it_is_pgd(digits):
    x, y = digits.x[:10], digits.y[:10]
    found = FixedRandomness(THREAT, steps=5)(net(), x, y, seed=0)
    plain = PGD(THREAT, steps=5, pick="best")(net(), x, y, seed=0)
    torch.testing.assert_close(found, plain, atol=1e-6, rtol=0)


def test_it_needs_a_classifier():
    with pytest.raises(ValueError, match="loss='nll'; use PGD"):
        FixedRandomness(THREAT, loss="nll")
