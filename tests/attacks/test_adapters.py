"""Attacks of torchattacks and foolbox: in the ball, reproducible, with an identity; nothing of theirs is changed."""

import json
import random

import numpy as np
import pytest
import torch
from torch import nn

from advbnn.attacks import PGD, Threat
from advbnn.attacks.adapters import from_foolbox, from_torchattacks
from advbnn.attacks.identity import memory_address, settings_of
from advbnn.data import to_float
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.checks import check_attack
from advbnn.randomness import seeded
from trained_nets import bnn, digits, net

pytestmark = pytest.mark.peers
LINF, L2 = Threat("linf", 0.1), Threat("l2", 0.6)


@pytest.fixture(scope="module")
def torchattacks():
    return pytest.importorskip("torchattacks")


@pytest.fixture(scope="module")
def foolbox():
    return pytest.importorskip("foolbox")


def batch(n=40):
    return to_float(digits().images[:n]), digits().labels[:n]


def accuracy(model, x, y):
    """The mean over weight samples, the same for all inputs."""
    with torch.no_grad(), seeded(0, x.device):
        return torch.stack([model(x).argmax(1) == y for _ in range(30)]).double().mean()


def adapted(torchattacks, foolbox):
    any_model = nn.Linear(1, 1)  # replaced by the model that is attacked
    return [
        from_torchattacks(torchattacks.PGD(any_model, eps=0.1, alpha=0.02, steps=10), LINF),
        from_torchattacks(torchattacks.APGD(any_model, eps=0.1, steps=5, eot_iter=2), LINF),
        from_torchattacks(torchattacks.PGDL2(any_model, eps=0.6, alpha=0.1, steps=10), L2),
        from_foolbox(foolbox.attacks.LinfPGD(steps=10, rel_stepsize=0.2), LINF),
        from_foolbox(foolbox.attacks.L2DeepFoolAttack(steps=10), L2),
    ]


def test_attacks_stay_in_their_threat_follow_the_seed_and_are_identified(torchattacks, foolbox):
    x, y = batch()
    for model in (net(), bnn()):
        for attack in adapted(torchattacks, foolbox):
            check_attack("theirs", attack)
            states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
            one, same, other = (attack(model, x, y, seed=seed) for seed in (1, 1, 2))
            assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[2]
            assert (np.random.get_state()[1] == states[1]).all()
            assert torch.equal(one, same)
            if model is not net():  # whose noise is another with another seed
                assert not torch.equal(one, other)
            assert attack.threat.distance(one, x).max() <= attack.threat.eps * (1 + 1e-6)
            assert one.min() >= 0 and one.max() <= 1
            clean, attacked = (accuracy(model, z, y) for z in (x, one))
            assert attacked < clean


def test_finds_what_the_same_attack_of_ours_finds(torchattacks, foolbox):
    x, y = batch()
    ours = PGD(LINF, steps=10, relative_step_size=0.2, random_start=False)(net(), x, y)
    made = torchattacks.PGD(nn.Linear(1, 1), eps=0.1, alpha=0.02, steps=10, random_start=False)
    theirs = foolbox.attacks.LinfPGD(steps=10, rel_stepsize=0.2, random_start=False)
    for attack in (from_torchattacks(made, LINF), from_foolbox(theirs, LINF)):
        # rounding may decide the sign of a gradient near zero
        assert ((attack(net(), x, y, seed=0) - ours).abs() > 1e-4).double().mean() < 0.01


def test_the_identity_is_made_of_the_fields(torchattacks, foolbox):
    def identity(steps):
        made = torchattacks.PGD(nn.Linear(1, 1), eps=0.1, steps=steps)
        several = torchattacks.MultiAttack([torchattacks.PGD(model, eps=0.1, steps=steps) for model in [net()] * 2])
        theirs = foolbox.attacks.LinfPGD(steps=steps)
        attacks = from_torchattacks(made, LINF), from_torchattacks(several, LINF), from_foolbox(theirs, LINF)
        return [settings_of(attack) for attack in attacks]

    for one, same, other in zip(identity(3), identity(3), identity(4), strict=True):
        assert one == same != other
        assert memory_address(one) is None
        assert json.loads(json.dumps(one)) == one
    assert identity(3)[0]["settings"]["steps"] == 3


def test_nothing_of_the_attack_or_the_model_is_changed(torchattacks, foolbox):
    x, y = batch(8)
    inside, model = nn.Linear(1, 1), nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.5)).eval()
    model[2].train()  # random at test time
    made = torchattacks.APGD(inside, eps=0.1, steps=2, seed=7)
    for attack in (from_torchattacks(made, LINF), from_foolbox(foolbox.attacks.LinfPGD(steps=2), LINF)):
        attack(model, x, y, seed=3)
        assert [module.training for module in model] == [False, False, True]
        assert all(parameter.requires_grad for parameter in model.parameters())
    assert made.model is inside and made.seed == 7


def test_an_evaluation_takes_them(torchattacks, foolbox, tmp_path):
    for attack in adapted(torchattacks, foolbox)[::3]:
        options = {"samples": 2, "seeds": 1, "out": tmp_path / "records.json"}
        records = evaluate(bnn(), digits(), {attack.attack_name: attack}, **options)
        assert records[0].accuracy < evaluate(bnn(), digits(), **options)[0].accuracy
        assert evaluate(bnn(), digits(), {attack.attack_name: attack}, **options) == records  # known again


def test_refusals(torchattacks, foolbox):
    made = torchattacks.PGD(nn.Linear(1, 1), eps=0.1)
    with pytest.raises(TypeError, match="torchattacks.PGD"):
        from_torchattacks(PGD(LINF), LINF)
    with pytest.raises(ValueError, match="eps=0.1.*eps=0.2.*same radius"):
        from_torchattacks(made, Threat("linf", 0.2))
    with pytest.raises(TypeError, match="foolbox.attacks.LinfPGD"):
        from_foolbox(PGD(LINF), LINF)
    with pytest.raises(ValueError, match="norm linf.*'l2'"):
        from_foolbox(foolbox.attacks.LinfPGD(), L2)
    with pytest.raises(TypeError, match="threat .*Threat"):
        from_foolbox(foolbox.attacks.LinfPGD(), 0.1)
    made.set_mode_targeted_by_label(quiet=True)
    with pytest.raises(ValueError, match="targets.*set_mode_default"):
        from_torchattacks(made, LINF)
    made.set_normalization_used([0.5], [0.2])
    with pytest.raises(ValueError, match="inside the model"):
        from_torchattacks(made, LINF)
