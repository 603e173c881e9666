"""Padded batches against the network itself, for the same noise; and gradients in a lower precision."""

import copy
from dataclasses import replace
from functools import partial
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from accelerated_nets import CALLS, NETWORKS, batch, network
from advbnn.attacks import APGD, PGD
from advbnn.attacks.losses import margin
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.defenses.learn2perturb import FeatureNoise
from advbnn.defenses.lwta import StochasticLWTA
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.history import look_back
from advbnn.evaluation.audit.worst_case import audit
from advbnn.fast import fast_passes
from advbnn.fast.acceleration import accelerate, rough_gradients
from advbnn.fast.cuda_graph import Forward, GraphMemory
from advbnn.fast.fast_passes import FastPasses, ladder, padded
from advbnn.fast.inference import FusedForward
from advbnn.randomness import seeded
from trained_nets import bnn, digits, net


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches for which a fast pass was built; it is the fused network itself, without a compiler."""
    sizes: list[int] = []

    def build(passes: FastPasses, key: tuple[object, ...], x: Tensor) -> None:
        sizes.append(len(x))
        passes.passes[key] = passes._fused

    monkeypatch.setattr(FastPasses, "_build", build)
    return sizes


def test_padding_wastes_at_most_a_sixteenth_of_the_full_batch() -> None:
    sizes = ladder(250)
    assert sizes[:3] == (16, 32, 47)
    assert sizes[-1] == 250
    assert all(0 < larger - smaller <= 250 / 16 + 1 for smaller, larger in pairwise(sizes))
    assert ladder(3) == (1, 2, 3)
    assert ladder(None) == ()
    x = torch.rand(3, 2)
    assert torch.equal(padded(x, 5), x[[0, 1, 2, 2, 2]])


def outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits with and without a gradient, and the gradient, under one seed each."""
    with seeded(5):
        leaf = x.clone().requires_grad_()
        logits = model(leaf)
    (gradient,) = torch.autograd.grad(logits.square().sum(), leaf)
    with seeded(6), torch.no_grad():
        return logits.detach(), gradient, model(x)


@pytest.mark.parametrize("kind", NETWORKS)
def test_batches_of_any_size_get_the_outputs_and_gradients_of_the_network(
    kind: str, built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shrinking batches share a few fast passes, unless the network's random numbers depend on the batch size."""
    monkeypatch.setattr(fast_passes, "_SIZES", 4)  # fewer, as each is compiled
    model, (x, _) = NETWORKS[kind]().eval(), batch(16)
    fast = accelerate(model, "compile", batch_size=16)
    for n in range(16, 0, -1):
        for _ in range(CALLS):
            for found, expected in zip(outputs(fast, x[:n]), outputs(model, x[:n]), strict=True):
                scale = float(expected.abs().amax())
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * scale)
    if kind not in ("noisy", "dropout"):
        assert sorted(built) == sorted(2 * ladder(16))  # each with and without a gradient
    else:
        assert len(set(built)) > 5


class Mixed(nn.Module):
    """Adds an image of the batch that is chosen at random."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x[torch.randint(len(x), (1,))]


@pytest.mark.parametrize(
    ("noise", "shared"),
    [
        (nn.Identity(), True),
        (FeatureNoise((1, 8, 8)), True),
        (nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True), True),  # in evaluation mode nothing is dropped
        (StochasticLWTA(1), False),
        (Mixed(), False),
    ],
)
def test_random_numbers_that_all_images_share_are_told_from_others(noise: nn.Module, shared: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.noise, self.last = noise, nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            attention = isinstance(self.noise, nn.MultiheadAttention)
            h = self.noise(*(x.flatten(1, 2),) * 3)[0] if attention else self.noise(x)
            return self.last(h.flatten(1))

    (x, _), fused, before = batch(3), FusedForward(Net().eval(), bf16=False), torch.get_rng_state()
    assert fused.draws_ignore_the_batch(x) is shared
    assert torch.equal(torch.get_rng_state(), before)


def test_larger_batches_and_no_size_at_all_run_as_they_are(built: list[int]) -> None:
    model, (x, _) = network().eval(), batch(9)
    for size, expected in ((4, {9}), (None, {9, 7})):
        fast = accelerate(model, "compile", batch_size=size)
        built.clear()
        for n in (9, 7 if size is None else 9):
            for _ in range(CALLS):
                assert fast(x[:n]).shape == (n, 10)
        assert set(built) == expected


def test_a_network_that_looks_at_the_rest_of_the_batch_is_not_padded(built: list[int]) -> None:
    class Centring(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    model, (x, _) = nn.Sequential(Centring(), network()).eval(), batch(16)
    fast = accelerate(model, "compile", batch_size=16)
    for _ in range(CALLS):
        torch.testing.assert_close(fast(x[:5]), model(x[:5]), rtol=1e-4, atol=1e-4)
    assert set(built) == {5}


@pytest.mark.parametrize("kind", ["plain", "bayesian"])
def test_only_differentiated_passes_have_the_precision_of_gradients(kind: str) -> None:
    model, (x, _) = NETWORKS[kind]().eval(), batch()
    fast = accelerate(model, "eager", gradients="bf16")
    (logits, gradient, scores), (plain, slope, expected) = outputs(fast, x), outputs(model, x)
    assert torch.equal(scores, expected)
    for rough, exact in ((logits, plain), (gradient, slope)):
        assert 1e-5 < (rough - exact).norm() / exact.norm() < 0.25
    assert rough_gradients(fast) and not rough_gradients(accelerate(model, "eager", "bf16"))
    with pytest.raises(ValueError, match="gradients='half'.*'bf16'"):
        accelerate(model, gradients="half")


def test_attacks_decide_nothing_by_a_rough_pass() -> None:
    """The point that APGD returns is the best by exact outputs, though its gradients are rough."""
    fast, points = accelerate(net(), "eager", gradients="bf16"), []
    x, y = digits().images / 255, digits().labels
    right = net()(x).argmax(1) == y
    x, y = x[right], y[right]

    class Watched(nn.Module):
        known_random = False  # so that no pass looks whether it is

        def __init__(self) -> None:
            super().__init__()
            self.fast = fast

        def forward(self, z: Tensor) -> Tensor:
            if not torch.is_grad_enabled() and len(z) == len(x):
                points.append(z)
            return self.fast(z)

    x_adv = APGD(Threat("linf", 0.02), steps=5, loss="margin")(Watched(), x, y, seed=0)
    with torch.no_grad():
        margins = torch.stack([margin(net()(z), y) for z in points])
        assert len(margins) == 1 + 6  # the images, the start and five steps
        assert (margin(net()(x_adv), y) >= margins.amax(0) - 1e-5).all()


@pytest.mark.parametrize("make", [net, bnn])
def test_rough_gradients_attack_as_well_and_are_recorded(make) -> None:
    attacks = {"pgd": PGD(Threat("linf", 0.1), steps=20, eot=2), "apgd": APGD(Threat("linf", 0.1), steps=10, eot=2)}
    options = {"samples": 8, "seeds": 1}
    exact, rough = (evaluate(make(), digits(), attacks, gradients=how, **options) for how in ("full", "bf16"))
    for one, other in zip(exact, rough, strict=True):
        assert abs(one.correct[0] - other.correct[0]) <= 6  # of 120
        assert "gradients of attacks bfloat16" in other.precision and "bfloat16" not in one.precision


def test_members_are_accelerated_alike() -> None:
    from advbnn.bayes.modes import Modes

    fast = accelerate(Modes([network(), bayesianize(network())]).eval(), "compile", gradients="bf16", batch_size=8)
    assert [part._batch_size for part in fast.components] == [8, 8]
    assert rough_gradients(fast)
    # one memory for all graphs, and another one for those of a copy
    first, second = fast.components
    assert first._memory is second._memory
    first, second = copy.deepcopy(fast).components
    assert first._memory is second._memory is not fast.components[0]._memory


def test_a_pass_that_exceeds_the_memory_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(passes: FastPasses) -> Forward:
        if not passes.passes:
            return passes._fused
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(FastPasses, "_compile", build)
    memory = GraphMemory()
    kept = memory.fixed("x", torch.ones(2))
    assert memory.fixed("x", torch.ones(2)) is kept
    model, (x, _) = network().eval(), batch()
    fast = accelerate(model, "compile", memory=memory)
    with torch.no_grad():
        for size in (8, 4, 8):
            for _ in range(CALLS):
                torch.testing.assert_close(fast(x[:size]), model(x[:size]), rtol=1e-4, atol=1e-5)
            (passes,) = fast._fast[1].values()
            assert len(passes.passes) == (size == 8)
    assert fast.engine == "compile"
    assert memory.fixed("x", torch.ones(2)) is not kept


@pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning")
@pytest.mark.parametrize("make", [net, bnn])
def test_an_audit_needs_few_fast_passes_and_finds_the_same(
    make, built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_passes, "_SIZES", 4)
    level = replace(LEVELS["quick"], eot=(1, 2), steps=(2, 4), restarts=2, apgd_steps=3, apgd_eot=2)
    level = replace(level, selection_samples=2, query_eot=2, square_queries=30, nes_queries=30, nes_directions=2)
    level = replace(level, comparison_samples=20, ensembles=2, max_weight_samples=60)
    shorter = partial(look_back, seeds=20)
    radii = [Threat("linf", eps) for eps in (0.05, 0.1)]
    with patch.dict(LEVELS, quick=level), patch("advbnn.evaluation.audit.runner.look_back", shorter):
        plain, fast = (
            audit(make(), digits().subset(range(30)), radii, "quick", batch_size=64, engine=engine).records
            for engine in ("eager", "compile")
        )
    # of the network, and of its mean
    assert set(built) <= set(ladder(64))
    assert len(built) <= 2 * 10
    for one, other in zip(plain, fast, strict=True):
        assert abs(one.accuracy - other.accuracy) < 0.08  # rounding may move a point or two
