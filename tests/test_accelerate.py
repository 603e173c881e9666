"""Fast forms of a network against the network itself, for the same noise."""

import copy
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from advbnn.accelerate import Accelerated, accelerate, engine_of
from advbnn.attackable import Attackable
from advbnn.attacks import APGD, PGD, Transfer
from advbnn.evaluate import evaluate
from advbnn.noise import add_noise
from advbnn.posterior import bayesianize
from advbnn.predict import Ensemble, predict
from advbnn.rng import seeded
from advbnn.sgld import SampleBank
from advbnn.threat import Threat
from cheats import Counting, Wrapped
from judged import bnn, digits

CALLS = 4
"""So many are made with each shape; the fast form is made at the third."""

ATTACK = PGD(Threat("linf", 0.1), steps=5, eot=2)


def batch(n: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(n, 1, 8, 8, generator=generator), torch.randint(10, (n,), generator=generator)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
    return nn.Sequential(OrderedDict(features=features, classifier=nn.Linear(72, 10)))


class Dropping(nn.Module):
    """Dropout that is on in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(functional.dropout(x, 0.3, training=True))


class Looking(Wrapped):
    """A network that looks at its numbers on the host."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x / x.max() if x.max() > 1 else x)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": network,
    "bayesian": lambda: bayesianize(network(), init_std=0.1),
    "noisy": lambda: add_noise(network()),
    "dropout": Dropping,
    "partly bayesian": lambda: nn.Sequential(nn.Identity(), bayesianize(network(), init_std=0.1)),
}


def outputs_and_gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """What a model says with and without a gradient, and the gradient, for some seeds."""
    found = []
    for seed in range(CALLS):
        with seeded(seed, x.device):
            leaf = x.clone().requires_grad_()
            logits = model(leaf)
            (gradient,) = torch.autograd.grad(functional.cross_entropy(logits, y, reduction="sum"), leaf)
            with torch.no_grad():
                found.append((logits.detach(), gradient, model(x)))
    return found


def assert_same(model: nn.Module, fast: nn.Module, x: Tensor, y: Tensor, tolerance: float = 1e-5) -> None:
    state = torch.get_rng_state()
    for ours, theirs in zip(outputs_and_gradients(fast, x, y), outputs_and_gradients(model, x, y), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().amax()))
    torch.testing.assert_close(
        predict(fast, x, 5, seed=0).probs, predict(model, x, 5, seed=0).probs, rtol=0, atol=tolerance
    )
    moved = (ATTACK(fast, x, y, seed=0) - ATTACK(model, x, y, seed=0)).abs()
    # the sign of a gradient near zero is a matter of rounding
    assert (moved > 1e-6).double().mean() < 0.01
    assert torch.equal(torch.get_rng_state(), state)


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
        (Counting, "running the model as it is: under the same seed the answers of the model and itself are"),
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
    monkeypatch.setattr(import_module("advbnn.accelerate"), "_KEPT", 2)
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
    fast = accelerate(model, "compile")
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


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of float32 in float32."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@needs_gpu
@pytest.mark.parametrize("kind", NETWORKS)
def test_recorded_equals_eager_for_the_same_noise(kind: str, exact: None) -> None:
    model = NETWORKS[kind]().eval().cuda()
    x, y = (t.cuda() for t in batch())
    fast = accelerate(model)
    state = torch.cuda.get_rng_state()
    assert_same(model, fast, x, y, tolerance=1e-4)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert fast.engine == "graph"
    assert fast._forms._forms  # something was recorded


@needs_gpu
def test_a_replay_moves_the_generator_on_as_a_pass_does() -> None:
    model = NETWORKS["bayesian"]().eval().cuda()
    x = batch()[0].cuda()
    fast = accelerate(model)
    with torch.no_grad():
        ends = []
        for network_ in (model, fast):
            for _ in range(CALLS):
                network_(x)
            with seeded(5, x.device):
                network_(x)
                network_(x)
                ends.append(torch.cuda.get_rng_state())
        assert torch.equal(*ends)
        assert not torch.equal(fast(x), fast(x))


@needs_gpu
def test_backward_passes_may_come_late_and_in_any_order(exact: None) -> None:
    model = NETWORKS["bayesian"]().eval().cuda()
    x, y = (t.cuda() for t in batch())
    fast = accelerate(model)
    for _ in range(CALLS):
        fast(x.clone().requires_grad_())
    gradients = []
    for network_ in (model, fast):
        leaf = x.clone().requires_grad_()
        # an ensemble keeps all of its passes for one backward pass
        log_probs = Ensemble(network_, samples=4, seed=2)(leaf)
        gradients.append(torch.autograd.grad(functional.nll_loss(log_probs, y), leaf)[0])
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5 * float(gradients[0].abs().amax()) + 1e-8)


@needs_gpu
def test_recordings_follow_weights_and_survive_a_dropped_workspace(exact: None) -> None:
    model = NETWORKS["bayesian"]().eval().cuda()
    x, y = (t.cuda() for t in batch())
    fast = accelerate(model)
    outputs_and_gradients(fast, x, y)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    model.cuda()  # moves nothing, but gives up the memory for noise
    torch.cuda.empty_cache()
    assert_same(model, fast, x, y, tolerance=1e-4)


@needs_gpu
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: Looking(network()), "synchroniz"),
        (lambda: SampleBank(network()), "random numbers on the CPU"),
    ],
)
def test_networks_that_cannot_be_recorded_run_as_they_are(
    model: Callable[[], nn.Module], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "advbnn")
    plain = model().eval().cuda()
    if isinstance(plain, SampleBank):
        plain.add()
        plain.add()
    fast = accelerate(plain, "graph")
    assert_same(plain, fast, *(t.cuda() for t in batch()), tolerance=1e-4)
    assert reason in caplog.text
    assert fast.engine == "eager"


@needs_gpu
def test_evaluations_on_a_gpu_are_the_same_in_every_engine(exact: None) -> None:
    model = copy.deepcopy(bnn()).cuda()
    attacks = {"clean": None, "pgd": ATTACK, "apgd": APGD(Threat("linf", 0.1), steps=5, eot=2, selection_samples=3)}
    options = {"samples": 4, "seeds": 1, "batch_size": 50}
    eager, recorded = (evaluate(model, digits(), attacks, engine=engine, **options) for engine in ("eager", "auto"))
    for a, b in zip(eager, recorded, strict=True):
        assert abs(a.correct[0] - b.correct[0]) <= 1  # a digit on the boundary may fall to either side
        assert b.versions["engine"] == "graph"


@needs_gpu
def test_bfloat16_is_recorded_and_near() -> None:
    model = NETWORKS["bayesian"]().eval().cuda()
    x, y = (t.cuda() for t in batch())
    fast = accelerate(model, precision="bf16")
    for ours, theirs in zip(outputs_and_gradients(fast, x, y), outputs_and_gradients(model, x, y), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert (a - b).norm() / b.norm() < 0.25
    assert fast.engine == "graph"


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
