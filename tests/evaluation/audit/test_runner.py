"""What the runner does beyond the worst case: mixtures exactly, known seeds beside it, straight-through gradients."""

import copy
from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import nn

from advbnn.attacks.threat import Threat
from advbnn.bayes.modes import Modes
from advbnn.bayes.prediction import predict
from advbnn.data import to_float
from advbnn.evaluation.accuracy import Evaluation
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.batch_audit import BatchAudit
from advbnn.evaluation.audit.runner import AuditRunner
from advbnn.evaluation.audit.worst_case import audit
from advbnn.evaluation.audit.worst_points import CONTENDERS
from trained_nets import bnn, digits, net

pytestmark = pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning")

THREAT = Threat("linf", 0.1)
TINY = replace(LEVELS["quick"], eot=(1, 2), steps=(2, 4), restarts=2, apgd_steps=3, apgd_eot=2, selection_samples=2)
TINY = replace(TINY, query_eot=2, square_queries=8, nes_queries=12, nes_directions=2)
TINY = replace(TINY, comparison_samples=20, ensembles=2, max_weight_samples=60)


def tiny(model, *, images=40, **changes):
    with patch.dict(LEVELS, quick=replace(TINY, **changes)):
        return audit(model, digits().subset(range(images)), THREAT, "quick")


def test_an_attacker_that_knows_the_seed_is_reported_beside_the_worst_case():
    found, without = tiny(bnn(), images=16, known_seed_steps=20), tiny(bnn(), images=16)
    (record,) = found.records
    (left,) = record.details["known_seed"]
    # all attacks are judged by the ensemble of the seed, so that none of them leaves less
    assert left <= min(one["correct"][0] for one in record.details["attacks"] if one["on"] == "all")
    assert "knows the seed" in str(found)
    assert "known_seed" not in without.records[0].details
    assert without.records[0].correct == record.correct  # the worst case is the same with and without it
    assert "known_seed" not in tiny(net(), images=16, known_seed_steps=20).records[0].details


def test_a_network_in_training_mode_is_audited_in_evaluation_mode_and_keeps_its_statistics():
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(), copy.deepcopy(net())).train()
    before = [buffer.clone() for buffer in model.buffers()]
    (record,) = tiny(model, images=16).records
    assert not record.details["random"] and all(map(torch.equal, before, model.buffers()))
    assert all(part.training for part in model.modules())


def mixture():
    """Two networks that disagree."""
    other = copy.deepcopy(net())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    return Modes([net(), other], [0.7, 0.3]).eval()


def test_a_mixture_of_a_few_networks_is_scored_exactly_and_attacked_member_by_member():
    model = mixture()
    (record,) = tiny(model).records
    names = [one["name"] for one in record.details["attacks"]]
    assert "ARC" in names
    assert record.details["inconclusive"] == [0] and len(record.correct) == 1
    x, y = to_float(digits().images[:40]), digits().labels[:40]
    assert record.details["attacks"][0]["correct"] == [int((predict(model, x).label == y).sum())]


class OpenRounding(nn.Module):
    """Rounds to 16 levels, and says what its gradient should be."""

    def forward(self, x):
        return (15 * x.detach()).round() / 15

    def straight_through(self, x):
        return x


def test_gradients_that_a_part_offers_are_used_by_the_attacks():
    open_net = nn.Sequential(OpenRounding(), net()).eval()
    hidden = nn.Sequential(type("Rounding", (nn.Module,), {"forward": OpenRounding.forward})(), net()).eval()

    def under_pgd(model):
        attacks = tiny(model, steps=(2, 15)).records[0].details["attacks"]
        return next(one["correct"][0] for one in attacks if one["name"] == "PGD-15")

    assert under_pgd(open_net) <= under_pgd(hidden) - 8


class Unmoved(nn.Module):
    """A random network whose outputs do not depend on the image."""

    def forward(self, x):
        leading = 3 * (torch.arange(10) == 0) + torch.randn(10)
        return leading.expand(len(x), -1) + 0 * x.flatten(1).sum(1, keepdim=True)


def test_points_that_a_larger_radius_does_not_change_are_neither_compared_nor_scored_again():
    radii, scored, compared = [Threat("linf", eps) for eps in (0.05, 0.1, 0.2)], [], []
    score, compare = BatchAudit._score, BatchAudit._compare

    def counted_score(self, points, y):
        scored.append(len(points))
        return score(self, points, y)

    def counted_comparison(self, points, rows):
        compared.extend(rows.tolist())
        return compare(self, points, rows)

    with (
        patch.dict(LEVELS, quick=TINY),
        patch.object(BatchAudit, "_score", counted_score),
        patch.object(BatchAudit, "_compare", counted_comparison),
    ):
        found = audit(Unmoved(), digits().subset(range(16)), radii, "quick")
    assert scored == [16]
    assert max(Counter(compared).values(), default=0) <= CONTENDERS
    assert len({record.correct for record in found.records}) == 1


def test_all_radii_attack_the_same_copy_of_the_mean_network():
    suites = AuditRunner(
        Evaluation(bnn(), digits(), seeds=1), {}, [THREAT, replace(THREAT, eps=0.2)], TINY, transfer_from={}, given={}
    ).setup.suites
    sources = [entry.attack.source for suite in suites for entry in suite if entry.role == "transfer"]
    assert len(sources) == 2 and sources[0] is sources[1]
    assert sources[0].known_random is False
