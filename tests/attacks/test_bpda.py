"""BPDA: an attack through the gradient of a stand-in, for a part or for the whole network."""

import pytest
import torch
from torch import nn

from advbnn.attacks import BPDA, PGD
from advbnn.attacks.base import GradientMaskingWarning
from advbnn.attacks.losses import margin
from advbnn.attacks.threat import Threat
from advbnn.evaluation import evaluate
from cheats import Rounded
from trained_nets import digits, net

THREAT = Threat("linf", 0.1)
ATTACK = PGD(THREAT, steps=15)


class Rounding(nn.Module):
    """Rounds to 16 levels, without a gradient."""

    def forward(self, x):
        return (15 * x.detach()).round() / 15 + 0 * x


def test_a_defence_that_defeats_pgd_falls_to_a_stand_in_for_its_part_or_for_all_of_it():
    model = nn.Sequential(Rounding(), net()).eval()
    options = {"seeds": 1, "samples": 1}
    with pytest.warns(GradientMaskingWarning):
        masked = evaluate(model, digits(), ATTACK, **options)[0].accuracy
    attacks = {
        "part": BPDA(ATTACK, backward=lambda z: z, of=model[0]),
        "whole": BPDA(ATTACK, backward=net()),
    }
    of_part, whole = (record.accuracy for record in evaluate(model, digits(), attacks, **options))
    assert max(of_part, whole) < masked - 0.3


def test_the_network_keeps_its_values_and_loses_its_hooks():
    model, x = Rounded(net()), torch.rand(4, 1, 8, 8)
    y = model(x).argmax(1)
    result = BPDA(ATTACK, backward=net()).run(model, x, y, seed=0)
    assert result.queries.tolist() == [15] * 4
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert BPDA(ATTACK, backward=net()).threat == THREAT
    # whatever stands in, the attack compares points, x among them, by the network's own values
    best = PGD(THREAT, steps=5, pick="best")
    again = BPDA(best, backward=lambda z: -net()(z))(model, x, y, seed=0)
    before, after = (margin(model(z), y) for z in (x, again))
    assert (after >= before - 1e-5).all()


def test_a_stand_in_must_be_callable():
    with pytest.raises(TypeError, match="backward .*function"):
        BPDA(ATTACK, backward="identity")
