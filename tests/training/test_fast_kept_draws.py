"""The fast step of layers that keep a draw for an attack, an update or both, against the eager step."""

import math

import pytest
import torch
from torch import Tensor, nn

from advbnn.defenses.defense import Defense
from advbnn.defenses.kept_draw import KeptDraw
from fast_steps import ATTACK, SEED, batch, close, eager, fast, network


class Gain(KeptDraw):
    """x times a kept number; with a penalty, the draws of a test in their order."""

    def __init__(self, draws: list[float]) -> None:
        super().__init__()
        self.draws, self.seen = iter(draws), []
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("kept", torch.ones(()), persistent=False)

    def redraw(self) -> None:
        self.kept.fill_(next(self.draws))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.kept.item())
        return x * (self.scale + self.kept)

    def penalty(self) -> Tensor:
        return -0.1 * self.scale.log()


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_kept_draw_lasts_for_the_attack_and_another_for_the_update(mode: str) -> None:
    (x, y), results, how = batch(), [], Defense(attack=ATTACK, attack_mode=mode)
    for make in (eager, fast):
        layer = Gain([-1.3, 0.7])  # the first turns the sign of the gradient of the input
        model = nn.Sequential(layer, network()).train()
        record = make(model, how)(x, y, SEED)
        results.append((record, model))
        # the fast step runs a copy of the layer, with the buffers of this one
        assert make is fast or layer.seen[-1] == pytest.approx(0.7)
        assert make is fast or layer.seen[:-1] == pytest.approx([-1.3] * (len(layer.seen) - 1))
        assert layer.kept.item() == pytest.approx(0.7)
        # the penalty is in the loss, and not in the data term
        assert (record.loss - record.nll).item() == pytest.approx(-0.1 * math.log(0.5), rel=1e-4)
    (theirs, reference), (ours, model) = results
    torch.testing.assert_close(ours.nll, theirs.nll, rtol=1e-4, atol=1e-5)
    close(model, reference)
    # it is in the gradient: d/ds (-0.1 log s) = -0.2 at s = 0.5
    unpenalised = nn.Sequential(Gain([-1.3, 0.7]), network()).train()
    unpenalised[0].penalty = None
    eager(unpenalised, how)(x, y, SEED)
    assert (reference[0].scale - unpenalised[0].scale).item() == pytest.approx(0.1 * 0.2, rel=1e-3)


def test_an_attack_with_batch_statistics_sees_the_draw_of_its_step() -> None:
    (x, y), results = batch(), []
    for make in (eager, fast):
        # with the sign of the draw, the gradients of the attack change theirs
        model = nn.Sequential(Gain([-2.0, 0.7, -3.0, 0.8]), network()).train()
        step = make(model, Defense(attack=ATTACK, attack_mode="train"))
        results.append(([step(x, y, seed).nll for seed in (SEED, SEED + 1)], model))
    (theirs, reference), (ours, model) = results
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    close(model, reference)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_draw_may_be_kept_for_attack_and_update(mode: str) -> None:
    (x, y), results = batch(), []
    for make in (eager, fast):
        layer = Gain([-1.3, 0.7])
        layer.also_for_update = True
        model = nn.Sequential(layer, network()).train()
        results.append((make(model, Defense(attack=ATTACK, attack_mode=mode))(x, y, SEED), model))
        assert layer.kept.item() == pytest.approx(-1.3)
        assert all(kept == pytest.approx(-1.3) for kept in layer.seen)
    (theirs, reference), (ours, model) = results
    torch.testing.assert_close(ours.nll, theirs.nll, rtol=1e-4, atol=1e-5)
    close(model, reference)


class Opposite(Gain):
    """The update has the opposite number of the attack."""

    def redraw_for_update(self) -> None:
        self.kept.neg_()


def test_the_draw_of_the_update_may_depend_on_that_of_the_attack() -> None:
    (x, y), results = batch(), []
    for make in (eager, fast):
        layer = Opposite([-1.3])
        model = nn.Sequential(layer, network()).train()
        results.append((make(model, Defense(attack=ATTACK))(x, y, SEED), model))
        assert layer.kept.item() == pytest.approx(1.3)
        assert make is fast or {round(kept, 4) for kept in layer.seen[:-1]} == {-1.3}
    (theirs, reference), (ours, model) = results
    torch.testing.assert_close(ours.nll, theirs.nll, rtol=1e-4, atol=1e-5)
    close(model, reference)
