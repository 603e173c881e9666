"""Choosing the form of a step, and falling back with a reason."""

import logging

import pytest
import torch

from advbnn import models
from advbnn.defenses import Defense
from advbnn.engine import make_step
from advbnn.faststep import FastStep
from advbnn.objective import RobustLoss
from advbnn.posterior import bayesianize
from advbnn.priors import ScaleMixturePrior
from advbnn.step import EagerStep

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def parts(device: str = "cpu", **options):
    model = bayesianize(models.build("small_cnn", classes=10, image_size=8, channels=1), **options).to(device)
    defense = Defense()
    loss = RobustLoss(model, defense.objective, 100)
    return loss, torch.optim.SGD(loss.parameters(), lr=0.1), defense


def test_forms_on_a_cpu() -> None:
    assert isinstance(make_step("eager", *parts()), EagerStep)
    assert isinstance(make_step("auto", *parts()), EagerStep)
    assert isinstance(make_step("compile", *parts()), FastStep)
    with pytest.raises(ValueError, match="engine='graph'.*on the CPU"):
        make_step("graph", *parts())


def test_an_unknown_engine_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="engine='eagre'.*did you mean 'eager'"):
        make_step("eagre", *parts())


def test_a_step_that_cannot_be_fast_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="engine='compile' cannot do this step: .*no closed form"):
        make_step("compile", *parts(prior=ScaleMixturePrior()))


@needs_gpu
def test_auto_falls_back_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="advbnn"):
        step = make_step("auto", *parts("cuda", prior=ScaleMixturePrior()))
    assert isinstance(step, EagerStep)
    assert "no closed form" in caplog.text
    assert isinstance(make_step("auto", *parts("cuda")), FastStep)
