"""Accelerated networks against the network itself, for the same noise."""

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from accelerated_nets import ATTACK, CALLS, NETWORKS, DataDependent, assert_same, batch, network, pairs, results
from advbnn.attacks import Transfer
from advbnn.bayes.mean_field import bayesianize
from advbnn.defenses.kept_draw import KeptDraw
from advbnn.defenses.rse import add_noise
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.attackable import Attackable, accelerated
from advbnn.fast.acceleration import accelerate, engine_of
from advbnn.randomness import Resampled, seeded
from cheats import Counting
from inconsistent_nets import Offering
from trained_nets import bnn, digits


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., Tensor]]:
    """Compilation without C++: the network is traced and differentiated only."""
    compiled: list[Callable[..., Tensor]] = []
    torch_compile = torch.compile

    def trace_only(run: Callable[..., Tensor], *, options: object, **how: bool) -> Callable[..., Tensor]:
        torch.compiler.reset()
        compiled.append(torch_compile(run, backend="aot_eager", **how))
        return compiled[-1]

    monkeypatch.setattr(torch, "compile", trace_only)
    return compiled


@pytest.mark.parametrize("kind", NETWORKS)
def test_compiled_equals_eager_for_the_same_noise(kind: str, traced: list) -> None:
    model = NETWORKS[kind]().eval()
    fast = accelerate(model, "compile")
    assert_same(model, fast, *batch())
    assert fast.engine == "compile"
    assert len(traced) == 1


@pytest.mark.slow
def test_the_real_compiler_uses_the_same_random_numbers(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    # code and headers in the shared cache may have been compiled for other CPU settings
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    try:
        torch.compile(lambda x: x.sin() + x.cos(), dynamic=False)(torch.rand(64))
    except Exception as error:
        pytest.skip(f"torch's compiler does not work here: {error}")
    torch.manual_seed(0)
    # a smooth network, since rounding may move a unit across the kink of a ReLU
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 10))
    model = add_noise(bayesianize(net)).eval()
    fast = accelerate(model, "compile")
    for a, b in pairs(fast, model, *batch()):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4 * float(b.abs().amax()))
    assert fast.engine == "compile"


@pytest.mark.parametrize("kind", ["plain", "bayesian"])
def test_compiled_backward_passes_compute_no_weight_gradients(kind: str, traced: list) -> None:
    fast = accelerate(NETWORKS[kind]().eval(), "compile")
    x, y = batch()
    results(fast, x, y)

    masks = set()

    class Masks(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op is torch.ops.aten.convolution_backward.default:
                masks.add(tuple(args[-1]))
            return op(*args, **(kwargs or {}))

    leaf = x.clone().requires_grad_()
    logits = fast(leaf)
    with Masks():
        torch.autograd.grad(logits.sum(), leaf)
    assert masks == {(True, False, False)}
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
    for a, b in pairs(fast, model, *batch()):
        assert a.dtype == torch.float32
        assert 1e-5 < (a - b).norm() / b.norm() < 0.25


def test_modes_frozen_blocks_and_changed_weights_take_effect(traced: list) -> None:
    model = bayesianize(network(), init_std=0.1).eval()
    fast = accelerate(model, "compile")
    x, y = batch()
    results(fast, x, y)
    with torch.no_grad():
        with model.frozen(seed=1):
            assert torch.equal(fast(x), model(x)) and torch.equal(fast(x), fast(x))

        def in_place() -> None:
            for parameter in model.net.parameters():
                parameter.mul_(1.5)

        def elsewhere() -> None:
            model.net.classifier.weight.data = 2 * model.net.classifier.weight.data

        for change in (in_place, elsewhere):
            change()
            with seeded(0):
                found = fast(x)
            with seeded(0):
                expected = model(x)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().amax()))
        fast.train()
        before = model.net.features[1].running_mean.clone()
        fast(x)
        assert not torch.equal(model.net.features[1].running_mean, before)


def test_copies_are_independent_and_empty_batches_run(traced: list) -> None:
    fast = accelerate(network().eval(), "compile")
    x, y = batch()
    assert fast(x[:0]).shape == (0, 10)  # an empty batch changes nothing
    results(fast, x, y)
    assert fast.engine == "compile"
    other = copy.deepcopy(fast)
    with torch.no_grad():
        before = fast(x)
        other.model.classifier.weight.zero_()
        torch.testing.assert_close(other(x), other.model.classifier.bias.expand(8, 10))
        assert torch.equal(fast(x), before)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Counting, "under the same seed the outputs of the model and itself differ"),
        (DataDependent, "batches of shape (8, 1, 8, 8) eagerly: Data-dependent branching"),
    ],
)
def test_networks_that_cannot_be_compiled_run_eagerly(
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


@pytest.mark.parametrize("precision", ["full", "bf16"])
def test_a_random_state_is_resampled_and_never_kept_by_a_fast_pass(
    precision: str, traced: list, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "advbnn")
    model = Offering(network()).eval()
    fast, x = accelerate(model, "compile", precision), batch()[0]
    for _ in range(2):
        with torch.no_grad(), seeded(0):
            outputs = [fast(x) for _ in range(CALLS + 1)]
        for different in zip(outputs[1:], outputs, strict=False):
            assert not torch.equal(*different)
    assert engine_of(fast) == "eager" and not traced
    assert caplog.text.count("resampled at every pass") == 1
    with torch.no_grad(), seeded(0):
        expected = Resampled(model)(x)
    torch.testing.assert_close(outputs[0], expected, atol=0 if precision == "full" else 0.1, rtol=0)


def test_a_state_in_buffers_is_drawn_before_each_fast_pass(traced: list) -> None:
    class Scaled(KeptDraw):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.register_buffer("scale", torch.ones(()), persistent=False)

        def redraw(self) -> None:
            self.scale.normal_()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x) * self.scale

    model, x = Scaled().eval(), batch()[0]
    fast, passes = accelerate(model, "compile"), []
    for seed in range(CALLS + 2):
        with torch.no_grad(), seeded(seed):
            passes.append(fast(x))
        with torch.no_grad(), seeded(seed):
            torch.testing.assert_close(passes[-1], Resampled(model)(x), rtol=1e-4, atol=1e-5)
    assert engine_of(fast) == "compile" and traced
    assert not any(torch.equal(*different) for different in zip(passes[1:], passes, strict=False))


def test_more_shapes_than_the_limit_run_eagerly(
    traced: list, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "advbnn")
    monkeypatch.setattr(import_module("advbnn.fast.fast_passes"), "_MAX_PASSES", 2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    fast = accelerate(model, "compile")
    for n in range(2, 6):
        x, _ = batch(n)
        for _ in range(CALLS):
            with torch.no_grad():
                torch.testing.assert_close(fast(x), model(x))
    assert "batches of shape (4, 1, 8, 8) eagerly: 2 other" in caplog.text
    assert fast.engine == "compile"


def test_the_number_of_networks_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert_same(model, fast, *batch())
    assert engine_of(fast) == "compile"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "grph"}, "engine='grph'.*'graph'"),
        ({"precision": "fp16"}, "precision='fp16'.*'bf16'"),
        ({"engine": "graph"}, "engine='graph'.*CPU.*'compile'"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        accelerate(network(), **options)


def test_evaluations_agree_between_engines(traced: list) -> None:
    attacks = {"clean": None, "pgd": ATTACK, "from the mean": Transfer(bnn().net, replace(ATTACK, eot=1))}
    records = {
        engine: evaluate(bnn(), digits(), attacks, samples=4, seeds=1, batch_size=60, engine=engine)
        for engine in ("eager", "compile")
    }
    for eager, compiled in zip(*records.values(), strict=True):
        # rounding may change a prediction close to the decision boundary: up to 5% of 120 images
        assert abs(eager.correct[0] - compiled.correct[0]) <= 6
        assert eager.settings() == compiled.settings()
        assert (eager.versions["engine"], compiled.versions["engine"]) == ("eager", "compile")


def test_records_name_bfloat16(tmp_path) -> None:
    out = tmp_path / "records.json"
    record = evaluate(bnn(), digits(), samples=2, seeds=1, precision="bf16", out=out)[0]
    assert record.precision == "float32, autocast bfloat16"
    with pytest.raises(ValueError, match="precision.*bfloat16.*float32"):
        evaluate(bnn(), digits(), samples=2, seeds=1, out=out)
