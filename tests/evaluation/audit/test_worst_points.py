"""Choosing the worst point: estimates against known probabilities, invariance to scale, and contenders."""

import math

import pytest
import torch
from torch import Tensor

from advbnn.bayes.prediction import prediction_of
from advbnn.evaluation.audit.worst_points import CONTENDERS, WorstPoints, chance_correct

RULES = ("probability", "loss", "vote")


def sampled(chance: float, samples: int, n: int = 1, sure: float = 0.9, unsure: float = 0.9) -> Tensor:
    """Log probabilities of samples that give class 0 `sure` with the given chance, and class 1 `unsure` otherwise."""
    heads = torch.rand(samples, n, 1, generator=torch.Generator().manual_seed(1)) < chance
    return torch.where(heads, torch.tensor([sure, 1 - sure]), torch.tensor([1 - unsure, unsure])).log()


def zeros(n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.int64)


@pytest.mark.parametrize("rule", RULES)
def test_of_one_weight_sample_it_is_the_share_of_correct_samples(rule: str) -> None:
    log_probs = sampled(0.7, 30, n=50)
    share = (log_probs.argmax(-1) == 0).double().mean(0)
    assert bool(((chance_correct(log_probs, zeros(50), 1, rule) - share).abs() <= 1 / 200).all())


@pytest.mark.parametrize("size", [1, 5, 21])
def test_estimates_the_probability_that_an_ensemble_is_correct(size: int) -> None:
    # of an odd number of equally sure samples, more than half must be right: a binomial tail
    p = 0.6
    truth = sum(math.comb(size, k) * p**k * (1 - p) ** (size - k) for k in range(size // 2 + 1, size + 1))
    found = chance_correct(sampled(p, 400, n=200), zeros(200), size)
    assert abs(found.mean().item() - truth) < 0.03


def test_a_rare_but_sure_sample_is_seen() -> None:
    # its lead is negative in the mean, but most single samples are correct
    rare = sampled(0.9, 200, sure=0.51, unsure=0.999)
    even = sampled(0.55, 200)
    assert chance_correct(rare, zeros(1), 1) > chance_correct(even, zeros(1), 1)
    assert chance_correct(rare, zeros(1), 50) < chance_correct(even, zeros(1), 50)


@pytest.mark.parametrize("scale", [1e-4, 1e-2])
def test_does_not_depend_on_the_scale_of_small_logits(scale: float) -> None:
    """Where the softmax is nearly linear, all ensembles are those of the logits, at any scale."""
    generator = torch.Generator().manual_seed(0)
    logits = 1e-5 * torch.randn(20, 300, 10, generator=generator, dtype=torch.float64)
    logits[..., 0] += 0.5e-5 * torch.randn(300, generator=generator, dtype=torch.float64)
    one, other = (chance_correct((logits * by).log_softmax(-1), zeros(300), 20) for by in (1.0, scale))
    assert 0.1 < one.mean() < 0.9
    assert (one - other).abs().max() < 1 / 200


@pytest.mark.parametrize("rule", RULES)
def test_the_estimate_follows_the_label_of_the_ensemble(rule: str) -> None:
    """Resampling a single sample leaves a deterministic network, whose label decides."""
    logits = torch.randn(1, 200, 5, generator=torch.Generator().manual_seed(0))
    right = prediction_of(logits.log_softmax(-1), rule).label == 0
    found = chance_correct(logits.log_softmax(-1), zeros(200), 1, rule)
    assert torch.equal(found > 0.5, right)
    assert bool(((found < 0.01) | (found >= 1)).all())


def test_points_at_which_no_ensemble_errs_are_ordered_by_their_lead() -> None:
    noise = torch.randn(50, 1, generator=torch.Generator().manual_seed(0))
    leads = torch.tensor([9.0, 5.0, 7.0, -9.0])
    logits = torch.stack([leads + noise, torch.zeros(50, 4)], -1) / 100
    assert chance_correct(logits.log_softmax(-1), zeros(4), 20).argsort().tolist() == [3, 1, 2, 0]


def test_infinite_logarithms_are_compared() -> None:
    certain = torch.tensor([[[0.0, -torch.inf]]]).expand(10, 1, 2)
    for rule in RULES:
        assert chance_correct(certain, zeros(1), 5, rule) >= 1
        assert chance_correct(certain, torch.ones(1, dtype=torch.int64), 5, rule) < 0.01


def test_keeps_the_most_dangerous_points_of_each_image() -> None:
    worst = WorstPoints(torch.zeros(2, 1, dtype=torch.float64))
    for chance in (0.8, 0.9, 0.3, 0.6, 0.7, 0.5):
        chances = torch.tensor([chance, 0.01], dtype=torch.float64)
        worst.offer(chances[:, None], chances, torch.arange(2))
    assert worst.chance[:, 0].sort().values.tolist() == [0.3, 0.5, 0.6, 0.7]
    assert torch.equal(worst.points[..., 0], worst.chance)
    assert worst.surviving.tolist() == [0]
    worst.offer(chances[:1, None] - 0.3, chances[:1] - 0.3, torch.tensor([0]))
    assert worst.chance[:, 0].max() == 0.6


def test_contenders_are_compared_again_where_ensembles_disagree() -> None:
    worst = WorstPoints(torch.zeros(3, 1))
    for number in range(CONTENDERS):  # the later, the more dangerous by a little
        chance = torch.tensor([0.0, 0.5, 1.0]) + (9 - number) / 10_000
        worst.offer(torch.full((3, 1), float(number)), chance.double(), torch.arange(3))
    compared: list[list[int]] = []

    def compare(points: Tensor, rows: Tensor) -> Tensor:
        compared.append(rows.tolist())
        return points[:, 0].double()  # the later, the safer by much

    assert worst.choose(compare)[:, 0].tolist() == [CONTENDERS - 1, 0, CONTENDERS - 1]
    assert [row for rows in compared for row in rows] == [1] * CONTENDERS
    assert max(map(len, compared)) == 3  # together, but never more points than the batch has


def test_contenders_far_behind_are_not_compared() -> None:
    worst, compared = WorstPoints(torch.zeros(2, 1)), []
    for number, chances in enumerate([[0.1, 0.1], [0.9, 0.9], [0.7, 0.5]]):
        worst.offer(torch.full((2, 1), float(number)), torch.tensor(chances).double(), torch.arange(2))

    def compare(points: Tensor, rows: Tensor) -> Tensor:
        compared.extend(zip(points[:, 0].tolist(), rows.tolist(), strict=True))
        return 1 - points[:, 0].double() / 10  # the later, the more dangerous

    assert worst.choose(compare)[:, 0].tolist() == [0.0, 2.0]
    assert sorted(compared) == [(0.0, 1), (2.0, 1)]


def test_a_point_is_compared_once_however_often_the_worst_is_chosen() -> None:
    worst, compared = WorstPoints(torch.zeros(2, 1)), []

    def compare(points: Tensor, rows: Tensor) -> Tensor:
        compared.extend(zip(points[:, 0].tolist(), rows.tolist(), strict=True))
        return points[:, 0].double()

    for number in (3.0, 2.0):
        worst.offer(torch.full((2, 1), number), torch.full((2,), 0.5 + number / 100).double(), torch.arange(2))
        assert worst.choose(compare)[:, 0].tolist() == [number] * 2
    assert sorted(compared) == [(2.0, 0), (2.0, 1), (3.0, 0), (3.0, 1)]  # a single contender with no other
    for number in (4.0, 5.0, 1.0):  # the last one replaces the most harmless one, of the first image alone
        chance = torch.tensor([0.5 + number / 100, 1.0]).double()
        worst.offer(torch.full((2, 1), number), chance, torch.arange(2))
    assert worst.choose(compare)[:, 0].tolist() == [1.0, 2.0]
    assert len(set(compared)) == len(compared)
