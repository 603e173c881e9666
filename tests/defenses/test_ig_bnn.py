import math

import pytest
import torch
from torch import nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.defenses.defense import Defense
from advbnn.defenses.ig_bnn import ParticleEnsemble, Particles, information_gain
from advbnn.defenses.objective import RobustELBO
from advbnn.training.objective import RobustLoss, data_terms

IG_BNN = RobustELBO(information_gain=5.0)
ATTACK = PGD(Threat("linf", 0.1), steps=1)


def test_the_mean_of_the_logits_of_different_particles() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    model, x = Particles(net, 3), torch.rand(5, 1, 2, 2)
    each = model(x)
    assert torch.equal(each[:, 0], net(x)) and not torch.equal(each[:, 1], each[:, 2])
    torch.testing.assert_close(model.eval()(x), each.mean(1))


def test_information_gain_by_hand() -> None:
    agreeing = torch.tensor([2.0, 0.0]).log_softmax(0).expand(1, 4, 2)
    assert information_gain(agreeing).item() == pytest.approx(0.0, abs=1e-6)
    sure = torch.tensor([[[30.0, -30.0], [-30.0, 30.0]]])  # the mean of the logits is even: log 2 against 0
    assert information_gain(sure).item() == pytest.approx(math.log(2), rel=1e-5)


def test_the_loss_is_cross_entropy_plus_the_change_of_information_gain() -> None:
    def entropy(p: float) -> float:
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    def sigmoid(z: float) -> float:
        return 1 / (1 + math.exp(-z))

    # two particles, of which the second moves from even to (1, -1) under the attack
    clean, attacked = torch.zeros(1, 2, 2), torch.tensor([[[0.0, 0.0], [1.0, -1.0]]])
    term, score = data_terms(IG_BNN, torch.cat([clean, attacked]), torch.tensor([0]))
    likelihood = (math.log(2) - math.log(sigmoid(2.0))) / 2
    gain = entropy(sigmoid(1.0)) - (math.log(2) + entropy(sigmoid(2.0))) / 2
    assert term.item() == pytest.approx(likelihood + 5 * abs(gain), rel=1e-5) and score.item() == 1


def test_a_batch_is_trained_on_the_loss_of_the_source() -> None:
    torch.manual_seed(0)
    model = Particles(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), 2)
    x, x_adv, y = torch.rand(6, 1, 2, 2), torch.rand(6, 1, 2, 2), torch.arange(6) % 3
    without = RobustLoss(model, RobustELBO(), 6)(x, x_adv, y)
    both = RobustLoss(model, IG_BNN, 6)(x, x_adv, y)
    change = (information_gain(model(x_adv)) - information_gain(model(x))).abs().mean()
    torch.testing.assert_close(both.total, without.total + 5 * change)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"objective": IG_BNN}, "ParticleEnsemble"),
        ({"network": ParticleEnsemble(), "objective": RobustELBO(trades=6.0)}, "trades"),
        ({"network": ParticleEnsemble(), "objective": RobustELBO(clean=0.5)}, "clean"),
        ({"network": ParticleEnsemble(), "attack_mode": "train"}, "attack_mode"),
        ({"network": ParticleEnsemble(), "objective": IG_BNN, "attack": None}, "attack"),
    ],
)
def test_what_has_no_meaning_is_refused(settings, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Defense(**{"attack": ATTACK} | settings)
