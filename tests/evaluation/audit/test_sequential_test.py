import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.prediction import predict
from advbnn.evaluation.audit.sequential_test import CertainSet, Verdict, sequential_test
from advbnn.randomness import seeded
from trained_nets import digits


class Coins(nn.Module):
    """Each input is the chance with which class 0 has probability 0.9; otherwise the last class has it."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.classes, self.seen, self.random_numbers = classes, 0, []

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        heads = torch.rand(len(x)) < x[:, 0]
        self.random_numbers.append(torch.rand(()).item())
        probs = torch.full((len(x), self.classes), 0.1 / (self.classes - 1))
        probs[heads, 0], probs[~heads, -1] = 0.9, 0.9
        return probs.log()


def flip(chance: float, points: int = 1000, classes: int = 2, **options: float) -> Verdict:
    x, y = torch.full((points, 1), chance), torch.zeros(points, dtype=torch.int64)
    known = {"seed": 0, "max_weight_samples": 300, "batch_size": points}
    return sequential_test(Coins(classes), x, y, **known | options)


@pytest.mark.parametrize("classes", [2, 5])
def test_each_error_is_as_rare_as_stated(classes: int) -> None:
    # at a tie either decision is an error
    verdict = flip(0.5, classes=classes, false_correct=0.05, false_wrong=0.1)
    assert 0 < verdict.correct.float().mean() <= 0.05
    assert 0 < verdict.wrong.float().mean() <= 0.1
    assert not (verdict.correct & verdict.wrong).any()


def coins(chance: float, samples: int, points: int = 1000, classes: int = 2) -> Tensor:
    """Log probabilities of weight samples, [samples, points, classes]."""
    with seeded(1):
        x = torch.full((points, 1), chance)
        return torch.stack([Coins(classes)(x) for _ in range(samples)])


@pytest.mark.parametrize("samples", [7, 120, 400])
def test_errors_are_as_rare_if_it_begins_with_samples_that_are_known(samples: int) -> None:
    verdict = flip(0.5, false_correct=0.05, false_wrong=0.1, given=coins(0.5, samples))
    assert 0 < verdict.correct.float().mean() <= 0.05
    assert 0 < verdict.wrong.float().mean() <= 0.1
    assert verdict.weight_samples.max() == 300
    assert flip(0.7, given=coins(0.7, samples)).correct.float().mean() > 0.99


@pytest.mark.parametrize("rule", ["probability", "vote"])
def test_known_samples_need_no_pass_and_decide_as_others(rule: str) -> None:
    x, y = torch.full((50, 1), 0.8), torch.zeros(50, dtype=torch.int64)
    known = coins(0.8, 120, 50)
    model = Coins()
    verdict = sequential_test(model, x, y, seed=0, max_weight_samples=300, rule=rule, given=known)
    taken = verdict.weight_samples
    assert model.seen == (taken - 120).clamp_min(0).sum()
    # one sample after the other decides at the same one
    for point in range(3):
        alone = [
            sequential_test(
                model, x[:1], y[:1], seed=0, max_weight_samples=m, rule=rule, given=known[:, point : point + 1]
            )
            for m in (int(taken[point]) - 1, 120)
        ]
        assert not alone[0].correct.any() and alone[1].weight_samples == taken[point]


@pytest.mark.parametrize("chance", [0.7, 1.0])
def test_decides_correctly(chance: float) -> None:
    assert flip(chance).correct.float().mean() > 0.99
    assert flip(1 - chance).wrong.float().mean() > 0.99


def test_is_about_as_fast_as_a_test_that_knows_the_odds() -> None:
    # with known odds, log wealth grows by the KL from a fair coin per weight sample
    chance, error = 0.7, 0.01
    kl = math.log(2) + chance * math.log(chance) + (1 - chance) * math.log(1 - chance)
    taken = flip(chance, max_weight_samples=1000, false_correct=error).weight_samples.float().mean()
    assert taken < 2 * math.log(1 / error) / kl
    assert flip(1.0).weight_samples.float().mean() < taken / 3


def test_decided_points_are_not_evaluated_again() -> None:
    model, x, y = Coins(), torch.tensor([[1.0], [0.5]]), torch.zeros(2, dtype=torch.int64)
    verdict = sequential_test(model, x, y, seed=0, max_weight_samples=500, false_correct=1e-9)
    assert model.seen == verdict.weight_samples.sum()
    assert verdict.weight_samples[0] < 50


def test_the_label_must_beat_every_class() -> None:
    class Tied(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([0.4, 0.2, 0.4]).log().expand(len(x), 3)

    verdict = sequential_test(Tied(), torch.zeros(1, 1), torch.tensor([0]), seed=0, max_weight_samples=300)
    assert not verdict.correct.any()


def test_agrees_with_a_large_ensemble_for_any_batch_size() -> None:
    x, y = digits().images / 255, digits().labels
    with seeded(0):
        model = bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), init_std=0.05)
    probs = predict(model, x, samples=2000, seed=5).probs
    clear = probs.topk(2, 1).values.diff(dim=1).abs().squeeze(1) > 0.04  # far from a tie
    y = torch.where(torch.arange(120) % 2 == 0, probs.argmax(1), y)
    right = probs.argmax(1) == y
    assert 10 < int((right & clear).sum()) < int(clear.sum()) - 10
    state = torch.get_rng_state()
    for batch_size in (250, 50):
        verdict = sequential_test(model, x, y, seed=1, max_weight_samples=500, batch_size=batch_size)
        assert torch.equal(verdict.correct[clear], right[clear])
        assert torch.equal(verdict.wrong[clear], ~right[clear])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("rule", ["probability", "vote"])
def test_blocks_of_weight_samples_decide_as_single_ones(rule: str) -> None:
    """On a GPU several weight samples are passed before the host looks: the decisions and their number are the same."""
    with seeded(0):
        model = bayesianize(nn.Linear(5, 3), init_std=0.5)
        x = torch.randn(40, 5)
    y = torch.where(torch.arange(40) % 2 == 0, model.net(x).argmax(1), 0)
    options: dict[str, Any] = {"seed": 0, "max_weight_samples": 100, "rule": rule}
    single = sequential_test(model, x, y, **options)
    assert single.correct.any() and single.wrong.any() and not (single.correct | single.wrong).all()
    with patch("advbnn.evaluation.audit.sequential_test._block", lambda number, device: 1 + number // 3):
        for one, other in zip(single, sequential_test(model, x, y, **options), strict=True):
            assert (one == other).float().mean() > 0.9  # up to rounding


def certain_set(*radii: list[float], model: nn.Module | None = None, **options: Any) -> CertainSet:
    """Three images, tested at growing radii at points with the given chances to be correct."""
    known = {"rule": "probability", "points": len(radii), "error": 0.01, "seed": 0}
    limits = {"max_weight_samples": 300, "batch_size": 10}
    found = CertainSet(model or Coins(), torch.zeros(3, dtype=torch.int64), **known | limits | options)
    for chances in radii:
        check(found, chances)
    return found


def check(found: CertainSet, chances: list[float], new: list[bool] | None = None) -> None:
    found.test(torch.tensor(chances)[:, None], torch.tensor(new or [True] * len(chances)))


def test_an_image_is_certain_if_every_test_calls_it_correct() -> None:
    found = certain_set([1.0, 1.0, 0.9], [0.9, 0.0, 0.5])
    assert found.certain.tolist() == [True, False, False]
    assert found.inconclusive.tolist() == [False, False, True]
    assert found.weight_samples[2] >= 300


def test_an_image_that_is_wrong_stays_wrong_and_is_not_tested_again() -> None:
    found = certain_set([0.5, 0.5, 0.0])
    assert found.inconclusive.tolist() == [True, True, False]
    before = found.weight_samples[2].item()
    check(found, [1.0, 0.0, 1.0])
    assert found.certain.tolist() == [False, False, False]
    assert (found.wrong.tolist(), found.inconclusive.tolist()) == ([False, True, True], [True, False, False])
    assert found.weight_samples[2] == before


def test_a_point_that_is_not_new_is_not_tested_again() -> None:
    found = certain_set([1.0, 1.0, 1.0])
    before = found.weight_samples.clone()
    check(found, [0.0, 0.0, 0.0], [False, True, False])
    assert found.certain.tolist() == [True, False, True]
    assert (found.weight_samples > before).tolist() == [False, True, False]


def test_known_samples_are_those_of_the_new_points() -> None:
    found = certain_set([0.5, 0.0, 0.5])  # the second image is wrong, and not tested again
    known = torch.stack([coins(1.0, 100, 1), coins(1.0, 100, 1), coins(0.0, 100, 1)], 1)[..., 0, :]
    model_free = torch.full((3, 1), 0.5)
    found.test(model_free, torch.tensor([True, True, True]), known)
    assert found.wrong.tolist() == [False, True, True]
    found.test(model_free, torch.tensor([True, False, False]), coins(0.0, 100, 1))
    assert found.wrong.tolist() == [True, True, True]


def test_every_test_has_weight_samples_of_its_own() -> None:
    model = Coins()
    certain_set([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], model=model)
    assert len(model.random_numbers) > 10
    assert len(set(model.random_numbers)) == len(model.random_numbers)


def test_votes_are_tested_as_votes() -> None:
    class Torn(nn.Module):
        """One weight sample in four is nearly sure of class 1, the others prefer class 0 a little."""

        def forward(self, x: Tensor) -> Tensor:
            rare = torch.rand(len(x), 1) < 0.25
            return torch.where(rare, torch.tensor([0.01, 0.99]), torch.tensor([0.51, 0.49])).log()

    assert certain_set([0.0, 0.0, 0.0], model=Torn(), rule="probability").wrong.all()
    assert certain_set([0.0, 0.0, 0.0], model=Torn(), rule="vote").certain.all()
