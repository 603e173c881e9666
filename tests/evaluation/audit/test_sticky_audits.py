"""Whole audits of networks that keep their random state: with a hook the truth, without one a flag."""

import functools
from dataclasses import replace
from unittest.mock import patch

import pytest
from torch import nn

from advbnn.attacks.threat import Threat
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.worst_case import Audit, audit
from advbnn.randomness import Resampled
from inconsistent_nets import ByMethod, Fresh, Offering, Sticky, Tired
from trained_nets import digits, net

pytestmark = pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning")

SHORT = replace(LEVELS["quick"], eot=(1, 4), steps=(3, 6), restarts=2, apgd_steps=4, max_weight_samples=100)
SHORT = replace(SHORT, square_queries=10, nes_queries=12, nes_directions=2)


def short(model: nn.Module) -> Audit:
    with patch.dict(LEVELS, quick=SHORT):
        return audit(model, digits(), Threat("linf", 0.1), "quick", rows=range(40), samples=10)


@functools.cache
def truth() -> float:
    """The headline of the network that draws the same noise afresh at every pass."""
    return short(Fresh(net())).records[0].accuracy


@pytest.mark.parametrize("adapted", [False, True])
def test_with_a_hook_the_headline_is_that_of_fresh_draws(adapted: bool) -> None:
    model = Resampled(ByMethod(net()), by=lambda net, seed: net.random_noise()) if adapted else Offering(net())
    found = short(model)
    assert "sticky_randomness" not in {flag.name for flag in found.raised}
    assert found.records[0].details["random"]
    # two audits differ by the draws of ten ensembles and by what random attacks find: about 0.03
    assert abs(found.records[0].accuracy - truth()) < 0.12


def test_without_a_hook_it_is_not_and_the_flag_says_so() -> None:
    found = short(ByMethod(net()))
    assert abs(found.records[0].accuracy - truth()) > 0.12
    (flag,) = [flag for flag in found.raised if flag.name == "sticky_randomness"]
    assert "ByMethod.random_noise" in flag.evidence


@pytest.mark.parametrize("model", [Sticky(net(), 1000), Tired(net(), after=1300)], ids=["1000", "counter"])
def test_what_changes_during_the_audit_is_flagged(model: nn.Module) -> None:
    found = short(model)
    assert "sticky_randomness" in {flag.name for flag in found.raised}
