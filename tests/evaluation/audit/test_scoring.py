"""The number of an audit against the truth: networks whose probability to be correct is known at every point."""

import copy
import functools
import math
from dataclasses import replace
from statistics import fmean
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from advbnn import data
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import predict
from advbnn.bayes.sample_bank import SampleBank
from advbnn.data import ImageSet, to_float
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.headline import band
from advbnn.evaluation.audit.worst_case import audit
from advbnn.evaluation.intervals import accuracy_interval, draws_variance
from advbnn.evaluation.records import Record
from cheats import Wrapped
from trained_nets import defended, net

pytestmark = pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning")

THREAT = Threat("linf", 0.15)
SURE, UNSURE = torch.tensor([0.9, 0.1]), torch.tensor([0.15, 0.85])


class Known(nn.Module):
    """Class 0 has probability 0.9 with the chance that the first pixel holds, else 0.15; no attack changes it."""

    def forward(self, x: Tensor) -> Tensor:
        chance = x.detach().flatten(1)[:, :1].round(decimals=1)
        two = torch.where(torch.rand(len(x), 1) < chance, SURE, UNSURE).log()
        return torch.cat([two, torch.full((len(x), 8), -30.0)], 1)  # for data with ten classes


def ensemble_chance(p: Tensor, size: int) -> Tensor:
    """The probability that an ensemble of `Known` is correct: 0.8 k > 0.7 (S - k), for k binomial."""
    needed = math.floor(0.7 * size / 1.5) + 1
    return sum(
        (math.comb(size, k) * p**k * (1 - p) ** (size - k) for k in range(needed, size + 1)), torch.zeros_like(p)
    )


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("size", [1, 20])
@pytest.mark.parametrize("chances", [(0.0, 0.3, 0.5, 0.7, 1.0), (0.0, 0.1), (0.45,), (0.9, 1.0)], ids=str)
def test_the_interval_contains_the_truth_as_often_as_it_says(
    chances: tuple[float, ...], size: int, shared: bool
) -> None:
    """Images from a population, ensembles of their own draws: both must be covered, at 0 and 1 too."""
    n, trials, ensembles = 60, 200, 10 if size == 20 else 200
    known, covered = torch.tensor(chances, dtype=torch.float64), 0
    truth = ensemble_chance(known, size).mean().item()
    torch.manual_seed(0)
    for _ in range(trials):
        chance = known[torch.randint(len(known), (n, 1))].float()
        # images share the random number of a weight sample, or have their own
        u = torch.rand(ensembles, size, 1 if shared else n, 1)
        probs = torch.where(u < chance, SURE, UNSURE).mean(1)
        correct = (probs.argmax(-1) == 0).sum(1).tolist()
        low, high = accuracy_interval(correct, n, draws=draws_variance([correct], n))
        covered += low - 1e-12 <= truth <= high + 1e-12
    assert covered / trials >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / trials)


def quick(
    model: nn.Module,
    images: ImageSet,
    threat: Threat = THREAT,
    size: int = 20,
    ensembles: int = 10,
    exact: bool = True,
) -> Record:
    """A short suite, scored well."""
    less = {"eot": (1, 2), "steps": (5, 10), "restarts": 2, "apgd_steps": 5, "apgd_eot": 2, "ensembles": ensembles}
    less |= {"square_queries": 8, "nes_queries": 30, "query_eot": 2}
    less |= {"comparison_samples": 50, "max_weight_samples": 100}
    with patch.dict(LEVELS, quick=replace(LEVELS["quick"], **less)):
        return audit(model, images, threat, "quick", samples=size, exact=exact).records[0]


@functools.cache
def digits(n: int) -> ImageSet:
    return data.load("digits").test.subset(range(n))


@pytest.mark.parametrize("size", [1, 20])
def test_the_choice_of_the_worst_point_does_not_bias_the_score(size: int) -> None:
    """All points are equal, so the worst of them, chosen on the samples that score it, would look worse than it is."""
    images = digits(100)
    chance = torch.arange(100) % 5 / 5
    pictures = images.images.clone()
    pictures[:, :, 0, 0] = (255 * chance[:, None]).round().to(pictures.dtype)
    same = replace(images, images=pictures, labels=torch.zeros_like(images.labels))
    record = quick(Known(), same, Threat("linf", 0.04), size)  # too small a radius for another first decimal
    truth = ensemble_chance(chance.double(), size)
    # independent draws: of 100 images times R ensembles
    error = (truth * (1 - truth)).mean().sqrt().item() / math.sqrt(100 * record.ensembles)
    assert abs(record.accuracy - truth.mean().item()) < 5 * error
    assert record.interval[0] < truth.mean() < record.interval[1]


class Dim(Wrapped):
    """Small noise on the input, and logits times a number."""

    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.net(x + 0.03 * torch.randn_like(x))


def test_the_scale_of_the_logits_does_not_move_the_headline() -> None:
    """The infinite ensemble stays inconclusive for small logits; the classifier in use is as robust as before."""
    images, found = digits(40), {}
    x, y = to_float(images.images), images.labels
    for scale in (1e4, 1.0, 1e-4):
        model = Dim(defended("adv"))
        model.scale = scale
        found[scale] = quick(model, images)
    x_adv = PGD(THREAT, steps=50)(defended("adv"), x, y, seed=5)
    deployed = fmean((predict(model, x_adv, seed=seed).label == y).double().mean().item() for seed in range(10))
    assert deployed > 0.2
    assert abs(found[1e-4].accuracy - deployed) < 0.1
    # three of 40 images: the attacks draw other noise, and single points lie on a boundary
    assert max(abs(found[scale].accuracy - found[1.0].accuracy) for scale in found) < 0.075
    assert found[1e-4].interval[0] > 0.1
    assert band(found[1e-4]).inconclusive > 0.9 > 0.2 > band(found[1.0]).inconclusive


def bank() -> SampleBank:
    """The same network twice, and once with logits of the opposite sign."""
    found, other = SampleBank(copy.deepcopy(net())), copy.deepcopy(net())
    with torch.no_grad():
        for parameter in list(other.parameters())[-2:]:
            parameter.neg_()
    for one in (net(), net(), other):
        found.add(one)
    return found.eval()


def test_a_finite_support_is_scored_by_its_members() -> None:
    model, tiny = bank(), Threat("linf", 1e-4)
    one = quick(model, digits(60), tiny, size=1, exact=False)
    assert one.ensembles == 200
    right = (net()(to_float(digits(60).images)).argmax(1) == digits(60).labels).double().mean().item()
    # two of three members are right: within five standard errors of 200 draws
    assert abs(one.accuracy - 2 / 3 * right) < 5 * math.sqrt(2 / 9 / 200)
    assert one.interval[0] < 2 / 3 * right < one.interval[1]
    # the exact mean over the members is deterministic
    exact = quick(model, digits(60), tiny)
    assert (exact.ensembles, exact.samples) == (1, 3)
    assert exact.accuracy == pytest.approx(right, abs=0.05)
