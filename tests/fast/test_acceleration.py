"""Fast forms of a network against the network itself, for the same noise."""

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from accelerated_nets import (
    ATTACK,
    CALLS,
    NETWORKS,
    Looking,
    assert_same,
    batch,
    network,
    outputs_and_gradients,
)
from advbnn.attacks import Transfer
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.sample_bank import SampleBank
from advbnn.defenses.rse import add_noise
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.attackable import Attackable, accelerated
from advbnn.fast.acceleration import Accelerated, accelerate, engine_of
from advbnn.randomness import seeded
from cheats import Counting
from judged import bnn, digits


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., Tensor]]:
    """Compilation as far as it depends on the network: traced and differentiated, but without building C++."""
    compiled: list[Callable[..., Tensor]] = []
    torch_compile = torch.compile

    def lightly(run: Callable[..., Tensor], *, options: object, **how: bool) -> Callable[..., Tensor]:
        torch.compiler.reset()
        compiled.append(torch_compile(run, backend="aot_eager", **how))
        return compiled[-1]

    monkeypatch.setattr(torch, "compile", lightly)
    return compiled


@pytest.mark.parametrize("kind", NETWORKS)
def test_compiled_equals_eager_for_the_same_noise(kind: str, traced: list) -> None:
    model = NETWORKS[kind]().eval()
    fast = accelerate(model, "compile")
    assert_same(model, fast, *batch())
    assert fast.engine == "compile"
    assert len(traced) == 1


@pytest.mark.slow
def test_the_real_compiler_draws_the_same_numbers() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 10))
    model = add_noise(bayesianize(net)).eval()
    fast = accelerate(model, "compile")
    x, y = batch()
    for ours, theirs in zip(outputs_and_gradients(fast, x, y), outputs_and_gradients(model, x, y), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert fast.engine == "compile"


@pytest.mark.parametrize("kind", ["plain", "bayesian"])
def test_compiled_backward_passes_compute_no_weight_gradients(kind: str, traced: list) -> None:
    fast = accelerate(NETWORKS[kind]().eval(), "compile")
    x, y = batch()
    outputs_and_gradients(fast, x, y)

    class Masks(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[list[bool]] = []

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op is torch.ops.aten.convolution_backward.default:
                self.seen.append(list(args[-1]))
            return op(*args, **(kwargs or {}))

    leaf = x.clone().requires_grad_()
    logits = fast(leaf)
    with Masks() as masks:
        torch.autograd.grad(logits.sum(), leaf)
    assert masks.seen
    assert all(mask == [True, False, False] for mask in masks.seen)
    assert all(p.grad is None and p.requires_grad for p in fast.parameters())


def test_eager_is_the_model_itself() -> None:
    model = network()
    assert accelerate(model, "eager") is model
    assert accelerate(model) is model  # on a CPU
    assert engine_of(model) == "eager"


@pytest.mark.parametrize("kind", ["plain", "bayesian", "noisy", "partly bayesian"])
def test_bfloat16_is_near_and_is_not_the_same(kind: str) -> None:
    model = NETWORKS[kind]().eval()
    fast = accelerate(model, "eager", "bf16")
    x, y = batch()
    for ours, theirs in zip(outputs_and_gradients(fast, x, y), outputs_and_gradients(model, x, y), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == torch.float32
            assert 1e-5 < (a - b).norm() / b.norm() < 0.25


def test_modes_frozen_blocks_and_changed_weights_are_followed(traced: list) -> None:
    model = bayesianize(network(), init_std=0.1).eval()
    fast = accelerate(model, "compile")
    x, y = batch()
    outputs_and_gradients(fast, x, y)
    with torch.no_grad():
        with model.frozen(seed=1):
            assert torch.equal(fast(x), fast(x))
            assert torch.equal(fast(x), model(x))
        for parameter in model.net.parameters():
            parameter.mul_(1.5)
        with seeded(0):
            expected = model(x)
        with seeded(0):
            torch.testing.assert_close(fast(x), expected)
        model.net.classifier.weight.data = 2 * model.net.classifier.weight.data
        with seeded(0):
            expected = model(x)
        with seeded(0):
            torch.testing.assert_close(fast(x), expected)
        fast.train()
        before = model.net.features[1].running_mean.clone()
        fast(x)
        assert not torch.equal(model.net.features[1].running_mean, before)


def test_copies_are_independent(traced: list) -> None:
    fast = accelerate(network().eval(), "compile")
    x, y = batch()
    outputs_and_gradients(fast, x, y)
    twin = copy.deepcopy(fast)
    with torch.no_grad():
        before = fast(x)
        twin.model.classifier.weight.zero_()
        torch.testing.assert_close(twin(x), twin.model.classifier.bias.expand(8, 10))
        assert torch.equal(fast(x), before)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Counting, "running the model as it is: under the same seed the outputs of the model and itself differ"),
        (Looking, "running batches of shape (8, 1, 8, 8) eagerly: Data-dependent branching"),
    ],
)
def test_networks_that_cannot_be_compiled_run_as_they_are(
    model: Callable[[nn.Module], nn.Module], reason: str, traced: list, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "advbnn")
    fast = accelerate(model(network()).eval(), "compile")
    x, _ = batch()
    for seed in range(CALLS):
        with torch.no_grad(), seeded(seed):
            found = fast(x)
    assert found.shape == (8, 10)
    assert fast.engine == engine_of(fast) == "eager"
    assert reason in caplog.text


def test_more_shapes_than_are_kept_run_eagerly(
    traced: list, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "advbnn")
    monkeypatch.setattr(import_module("advbnn.fast.acceleration"), "_MAX_PASSES", 2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    fast = accelerate(model, "compile")
    for n in range(2, 6):
        x, _ = batch(n)
        for _ in range(CALLS):
            with torch.no_grad():
                torch.testing.assert_close(fast(x), model(x))
    assert "running batches of shape (4, 1, 8, 8) eagerly: 2 other kinds of batches are compiled" in caplog.text
    assert fast.engine == "compile"


def test_there_is_no_limit_to_the_number_of_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_compile, (x, _) = torch.compile, batch()
    monkeypatch.setattr(torch, "compile", lambda run, *, options, **how: torch_compile(run, backend="eager", **how))
    with torch._dynamo.config.patch(recompile_limit=2):
        alive = [accelerate(nn.Sequential(nn.Flatten(), nn.Linear(64, n)).eval(), "compile") for n in (2, 3, 4, 5)]
        for fast in alive:
            for _ in range(CALLS):
                fast(x)
            assert engine_of(fast) == "compile"


def test_an_attackable_network_is_accelerated_within(traced: list) -> None:
    model = Attackable(nn.Sequential(network(), nn.Softmax(1)), returns_probabilities=True).eval()
    fast = accelerated(model, "compile")
    assert isinstance(fast, Attackable)
    assert fast.returns_probabilities
    assert_same(model, fast, *batch(), tolerance=1e-4)
    assert engine_of(fast) == "compile"


def test_samples_of_a_chain_are_compiled_too(traced: list) -> None:
    bank = SampleBank(network())
    for _ in range(2):
        bank.add()
        with torch.no_grad():
            bank.net.classifier.weight.mul_(2)
    bank.eval()
    assert_same(bank, accelerate(bank, "compile"), *batch())


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="engine='grph' is unknown.*'graph'"):
        accelerate(network(), "grph")
    with pytest.raises(ValueError, match="precision='fp16' is unknown"):
        accelerate(network(), precision="fp16")
    with pytest.raises(ValueError, match="the model is on the CPU; use 'compile' or 'auto'"):
        accelerate(network(), "graph")


def test_evaluations_are_the_same_in_every_engine(traced: list) -> None:
    attacks = {"clean": None, "pgd": ATTACK, "from the mean": Transfer(bnn().net, replace(ATTACK, eot=1))}
    records = {
        engine: evaluate(bnn(), digits(), attacks, samples=4, seeds=1, batch_size=60, engine=engine)
        for engine in ("eager", "compile")
    }
    for eager, compiled in zip(*records.values(), strict=True):
        assert eager.correct == compiled.correct
        assert eager.settings() == compiled.settings()
        assert (eager.versions["engine"], compiled.versions["engine"]) == ("eager", "compile")


def test_records_tell_of_bfloat16(tmp_path) -> None:
    out = tmp_path / "records.json"
    record = evaluate(bnn(), digits(), samples=2, seeds=1, precision="bf16", out=out)[0]
    assert record.precision == "float32, autocast bfloat16"
    with pytest.raises(ValueError, match="precision was 'float32, autocast bfloat16' and is now 'float32'"):
        evaluate(bnn(), digits(), samples=2, seeds=1, out=out)


def test_what_is_accelerated_shows_how() -> None:
    shown = repr(Accelerated(nn.Linear(2, 2), "compile"))
    assert "engine='compile', precision='full'" in shown


def test_an_empty_batch_is_no_reason_to_doubt(traced: list) -> None:
    model = network().eval()
    fast = accelerate(model, "compile")
    x, _ = batch()
    with torch.no_grad():
        assert fast(x[:0]).shape == (0, 10)
        for _ in range(CALLS):
            fast(x)
    assert fast.engine == "compile"
