"""Attacks on a posterior with finite support average over its networks exactly, through every wrapper."""

import copy

import pytest
import torch
from torch import nn

from advbnn.attacks import APGD, FAB, NES, PGD, HopSkipJump, Square
from advbnn.attacks.threat import Threat
from advbnn.bayes.modes import Modes
from advbnn.bayes.protocol import members
from advbnn.bayes.sample_bank import SampleBank
from advbnn.evaluation.attackable import Attackable
from advbnn.fast.acceleration import Accelerated

THREAT = Threat("linf", 0.1)
X = torch.rand(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 4


def bank(stored: int) -> SampleBank:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4)).double()
    found = SampleBank(net)
    for _ in range(stored):
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=0.5)
        with torch.no_grad():  # centred, so that all classes occur
            net[3].bias -= net.eval()(X).mean(0)
        found.add()
    return found.eval()


@pytest.mark.parametrize(
    "attack",
    [
        PGD(THREAT, steps=5, eot=3, pick="best"),
        APGD(THREAT, steps=5, eot=3, selection_samples=3),
        APGD(THREAT, steps=5, eot=3, selection_samples=3, loss="dlr", targets=3),
        FAB(THREAT, steps=5, targets=3, eot=3, selection_samples=3),
        Square(THREAT, queries=40, eot=3, selection_samples=3),
        NES(THREAT, queries=60, directions=5, eot=3, selection_samples=3),
        HopSkipJump(THREAT, queries=200, directions=20, eot=3, selection_samples=3),
    ],
    ids=lambda attack: f"{type(attack).__name__} {attack.loss}",
)
def test_one_member_is_a_plain_network(attack):
    """Also in what it costs: a mixture is not attacked less, and nothing is computed twice."""
    one = bank(1)
    plain = copy.deepcopy(members(one)[0].net)
    y = plain(X).argmax(1)
    found, expected = attack.run(one, X, y, seed=0), attack.run(plain, X, y, seed=0)
    torch.testing.assert_close(found.x_adv, expected.x_adv, atol=1e-9, rtol=0)
    assert found.queries.tolist() == expected.queries.tolist()


def test_selection_by_mean_probability_does_not_take_the_mean_logits_for_it():
    attack = PGD(THREAT, steps=4, eot=2, average="logits", pick="best", selection_samples=2)
    steps, members_of = 4, 3
    # two passes for the gradient of a loss of a mean, one to select; the clean and the last point are selected by too
    assert attack.run(bank(members_of), X, Y, seed=0).queries.tolist() == [members_of * (3 * steps + 2)] * len(X)


def test_sampling_approaches_the_exact_mean():
    model = bank(3)
    exact = PGD(THREAT, steps=3, eot=3, random_start=False)(model, X, Y, seed=0)
    assert torch.equal(exact, PGD(THREAT, steps=3, eot=3, random_start=False)(model, X, Y, seed=1))

    class Hidden(nn.Module):
        """The same network, which does not show its members."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x)

    def distance(eot: int) -> float:
        sampled = PGD(THREAT, steps=3, eot=eot, random_start=False)(Hidden(), X, Y, seed=0)
        return (sampled - exact).abs().mean().item()

    # 3 steps of 10 passes find other signs than 3 of 600; what is left are gradients near zero
    assert distance(600) < min(distance(10), 0.1 * THREAT.eps)


@pytest.mark.parametrize("average", ["loss", "probability", "logits"])
def test_it_costs_one_pass_of_each_member(average):
    model, passes = bank(3), 2 if average == "logits" else 1
    for eot, each in ((1, 1), (2, 3 * passes), (3, 3 * passes), (50, 3 * passes)):
        run = PGD(THREAT, steps=4, eot=eot, average=average).run(model, X, Y, seed=0)
        assert run.queries.tolist() == [4 * each] * 12


def test_members_that_are_random_themselves_are_sampled():
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 4).double()

        def forward(self, x):
            return self.layer(x + 0.1 * torch.randn_like(x))

    run = PGD(THREAT, steps=1, eot=5).run(Modes([Noisy(), Noisy()]).eval(), X, Y, seed=0)
    assert run.queries.tolist() == [5] * 12


def test_wrappers_show_the_members_of_what_they_wrap():
    model = bank(3)
    attack = APGD(THREAT, steps=5, eot=20)
    expected = attack(model, X, Y, seed=0)
    for wrapped in (Attackable(model), Accelerated(model, "eager"), Attackable(Accelerated(model, "eager"))):
        assert [member.weight for member in members(wrapped)] == [1 / 3] * 3
        torch.testing.assert_close(attack(wrapped, X, Y, seed=0), expected, atol=1e-9, rtol=0)
    assert members(nn.Linear(2, 2)) == ()


def test_a_frozen_network_is_attacked_as_the_sample_that_it_is():
    model, attack = bank(3), PGD(THREAT, steps=5, eot=3)
    with model.frozen(seed=0):
        assert members(model) == ()
        found = attack(model, X, Y, seed=0)
        alone = PGD(THREAT, steps=5)(model, X, Y, seed=0)
    torch.testing.assert_close(found, alone, atol=1e-9, rtol=0)


def test_black_box_queries_are_exact_too_and_success_has_no_standard_error():
    model = bank(2)
    with torch.no_grad():
        y = torch.stack([member.net(X).softmax(1) for member in members(model)]).mean(0).argmax(1)
    attack = NES(Threat("linf", 0.5), queries=400, directions=5, eot=2, selection_samples=2)
    found = attack(model, X, y, seed=0)
    with torch.no_grad():
        after = torch.stack([member.net(found).softmax(1) for member in members(model)]).mean(0).argmax(1)
    assert (after != y).sum() >= 6
