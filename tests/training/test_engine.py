"""Choosing the form of a step, and falling back with a reason."""

import copy
import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from advbnn import models
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.defenses.defense import Defense
from advbnn.fast.cuda_graph import make_capturable
from advbnn.fast.weights import SampledWeights
from advbnn.training.engine import FallbackStep, make_step
from advbnn.training.fast_step import FastStep
from advbnn.training.objective import RobustLoss
from advbnn.training.step import EagerStep
from quick import same

COMPARING = Defense(attack=PGD(Threat(), pick="best"))

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def parts(device: str = "cpu", **options):
    model = bayesianize(models.build("small_cnn", classes=10, image_size=8, channels=1), **options).to(device)
    defense = Defense()
    loss = RobustLoss(model, defense.objective, 100)
    return loss, torch.optim.SGD(loss.parameters(), lr=0.1), defense


def test_forms_on_a_cpu() -> None:
    assert isinstance(make_step("eager", *parts()), EagerStep)
    assert isinstance(make_step("auto", *parts()), EagerStep)
    assert isinstance(make_step("compile", *parts()), FallbackStep)
    with pytest.raises(ValueError, match="engine='graph'.*on the CPU"):
        make_step("graph", *parts())
    with pytest.raises(ValueError, match="engine='eagre'.*'eager'"):
        make_step("eagre", *parts())


def test_the_precision_of_a_fast_step() -> None:
    for precision, expected in (("auto", torch.float32), ("full", torch.float32), ("bf16", torch.bfloat16)):
        step = make_step("compile", *parts(), precision=precision)
        assert isinstance(step, FallbackStep)
        assert isinstance(step._fast.weights, SampledWeights)
        assert step._fast.weights.matrices.dtype == expected, precision


@pytest.mark.parametrize("engine", ["eager", "auto"])
def test_an_eager_step_has_no_half_precision(engine: str) -> None:
    with pytest.raises(ValueError, match="precision='bf16' .*'compile'"):
        make_step(engine, *parts(), precision="bf16")
    with pytest.raises(ValueError, match="precision='fp16'"):
        make_step(engine, *parts(), precision="fp16")


def test_a_step_without_a_fast_form_is_refused_with_the_reason() -> None:
    loss, optimizer, _ = parts()
    with pytest.raises(ValueError, match="engine='compile' .*compares candidates.*'eager'"):
        make_step("compile", loss, optimizer, COMPARING)


@needs_gpu
def test_auto_falls_back_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="advbnn"):
        step = make_step("auto", *parts("cuda")[:2], COMPARING)
    assert isinstance(step, EagerStep)
    assert "compares candidates" in caplog.text
    assert isinstance(make_step("auto", *parts("cuda")), FallbackStep)


def fast_step(net: nn.Module, optimizer: Callable[..., torch.optim.Optimizer]) -> FastStep:
    defense = Defense()
    loss = RobustLoss(net.train(), defense.objective, 100)
    options = {"precision": torch.float32, "captured": False, "compiled": False}
    return FastStep(loss, optimizer(loss.parameters()), defense, **options)


def test_a_step_that_fails_at_its_first_batch_is_undone_and_made_eagerly(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(step: FastStep, x: Tensor, y: Tensor, form: object, passes: object = None) -> Tensor:
        real(step, x, y, form, passes)
        raise RuntimeError("view size is not compatible\nwith all this")

    real = FastStep._step
    x, y = torch.rand(4, 1, 8, 8), torch.arange(4)
    net = models.build("small_cnn", classes=10, image_size=8, channels=1)
    nets = [net, copy.deepcopy(net)]
    steps = [fast_step(net, torch.optim.Adam) for net in nets]
    eager = EagerStep(steps[0].loss, steps[0].optimizer, steps[0].defense)
    tried = FallbackStep(steps[1], may_fall_back=True)
    eager(x, y, 5)
    monkeypatch.setattr(FastStep, "_step", failing)
    with caplog.at_level(logging.INFO, logger="advbnn"):
        tried(x, y, 5)
    assert "running eagerly: view size is not compatible" in caplog.text
    assert tried.why_eager == "view size is not compatible" and eager.why_eager is None
    for seed in (6, 7):
        eager(x, y, seed)
        tried(x, y, seed)
    assert same(*nets)


def test_inputs_outside_the_bounds_of_the_attack_are_refused_as_by_the_eager_step() -> None:
    net = models.build("small_cnn", classes=10, image_size=8, channels=1)
    fast = fast_step(net, torch.optim.SGD)
    fast.defense = Defense(attack=PGD(Threat("linf", 0.1), steps=1))
    with pytest.raises(ValueError, match="outside bounds"):
        FallbackStep(fast, may_fall_back=True)(3 * torch.randn(4, 1, 8, 8), torch.arange(4), 0)


def test_a_learning_rate_that_a_checkpoint_brought_back_on_the_cpu_goes_to_the_device() -> None:
    optimizer = torch.optim.Adam([nn.Parameter(torch.empty(2, device="meta"))], lr=torch.tensor(0.5))
    make_capturable(optimizer)
    assert optimizer.param_groups[0]["lr"].device.type == "meta"
    there = torch.optim.Adam([nn.Parameter(torch.zeros(2))], lr=torch.tensor(0.5))
    lr = there.param_groups[0]["lr"]
    make_capturable(there)
    assert there.param_groups[0]["lr"] is lr  # whose place a recording may know


def test_where_the_fast_form_was_asked_for_its_failure_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> Tensor:
        raise RuntimeError("capture is not possible")

    net = models.build("small_cnn", classes=10, image_size=8, channels=1)
    step = FallbackStep(fast_step(net, torch.optim.SGD), may_fall_back=False)
    monkeypatch.setattr(FastStep, "_step", failing)
    with pytest.raises(ValueError, match="engine='eager'"):
        step(torch.rand(4, 1, 8, 8), torch.arange(4), 0)
