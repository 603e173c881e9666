"""A classifier that picks one of several networks at random: scores by their probabilities."""

import math

import pytest
import torch
from torch import nn

from advbnn.attacks.threat import Threat
from advbnn.bayes.modes import Modes
from advbnn.bayes.protocol import Member, finite_support
from advbnn.data import from_tensors
from advbnn.evaluation.accuracy import CLEAN, Evaluation
from advbnn.evaluation.audit.worst_case import audit
from advbnn.evaluation.finite_support import correct_ensembles, picked


class Always(nn.Module):
    """Answers one class, or that of the first pixel."""

    def __init__(self, answer: int | None) -> None:
        super().__init__()
        self.answer, self.scale = answer, nn.Parameter(torch.ones(()))

    def forward(self, x):
        label = x.flatten(1)[:, 0].round().long() if self.answer is None else torch.full((len(x),), self.answer)
        return 5 * self.scale * nn.functional.one_hot(label, 2) + 0 * x.flatten(1).sum(1, keepdim=True)


def mixture(weights) -> Modes:
    return Modes([Always(None), *(Always(0) for _ in weights[1:])], weights=weights).eval()


@pytest.mark.parametrize(
    ("weights", "count", "expected"),
    [((0.9, 0.1), 20, [18, 2]), ((0.9, 0.1), 200, [180, 20]), ((0.5, 0.25, 0.25), 8, [4, 2, 2]), ((1.0,), 3, [3])],
)
def test_members_are_picked_as_often_as_their_probabilities_say(weights, count, expected):
    found = [Member(weight, nn.Identity()) for weight in weights]
    picks = picked(found, count, seed=0)
    assert picks.bincount(minlength=len(weights)).tolist() == expected
    assert picks.tolist() == picked(found, count, seed=0).tolist()
    if len(weights) > 1 and count > 8:
        assert picks.tolist() != picked(found, count, seed=1).tolist()


@pytest.mark.parametrize("count", [7, 10, 33])
def test_a_share_that_is_no_whole_number_is_rounded(count):
    found = [Member(weight, nn.Identity()) for weight in (0.7, 0.2, 0.1)]
    numbers = picked(found, count, seed=0).bincount(minlength=3)
    assert ((numbers - count * torch.tensor([0.7, 0.2, 0.1])).abs() < 1).all()


@pytest.mark.parametrize(("members", "count"), [(400, 200), (1000, 200), (300, 7)])
def test_all_of_many_members_are_picked_under_some_seed(members, count):
    found, times = [Member(1.0, nn.Identity())] * members, torch.zeros(members)
    for seed in range(200):
        times += picked(found, count, seed).bincount(minlength=members)
    # every second member, as of two chains that are stored in turn, is picked as often as the others
    assert abs(times[::2].sum() / times.sum() - 0.5) < 4 / math.sqrt(200 * count)
    expected = 200 * count / members
    assert (times - expected).abs().max() < 5 * math.sqrt(expected)


def test_several_picks_form_an_ensemble():
    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1])
    found = mixture((0.75, 0.25)).members()
    right = correct_ensembles(found, x, y, ensembles=40, samples=3, rule="vote", seed=0)
    assert right.shape == (2, 40) and right[0].all()
    # the second image is right where two or three of three picks are of the first network: 0.84 of the ensembles
    assert 0.7 < right[1].double().mean() < 0.95


def test_the_accuracy_is_the_mean_by_probability():
    x = torch.cat([torch.zeros(40, 1, 2, 2), torch.ones(60, 1, 2, 2)])
    data = from_tensors(x, torch.cat([torch.zeros(40), torch.ones(60)]).long())
    model = mixture((0.9, 0.1))
    (record,) = Evaluation(model, data, samples=1, seeds=2, exact=False).accuracy(CLEAN, None, ensembles=20)
    assert record.accuracy == pytest.approx(0.9 + 0.1 * 0.4)
    audited = audit(model, data, Threat("linf", 1e-4), "quick", samples=1, seeds=1, exact=False).records[0]
    assert audited.accuracy == pytest.approx(0.9 + 0.1 * 0.4)


def test_networks_that_are_random_themselves_are_sampled():
    class Noisy(Always):
        def forward(self, x):
            return super().forward(x) + torch.randn(2)

    x = torch.zeros(2, 1, 2, 2)
    assert len(finite_support(mixture((0.9, 0.1)), x)) == 2
    assert finite_support(Modes([Always(0), Noisy(0)]).eval(), x) == ()
