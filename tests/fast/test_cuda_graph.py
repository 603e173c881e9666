"""Forward passes captured as CUDA graphs against the network itself, for the same noise."""

import copy
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional

from accelerated_nets import ATTACK, CALLS, NETWORKS, DataDependent, assert_same, batch, network, pairs, results
from advbnn.attacks import APGD
from advbnn.attacks.gradient import expected_gradient
from advbnn.attacks.losses import Objective
from advbnn.attacks.threat import Threat
from advbnn.bayes.modes import Modes
from advbnn.bayes.prediction import Ensemble
from advbnn.bayes.protocol import members
from advbnn.bayes.sample_bank import SampleBank
from advbnn.evaluation.accuracy import evaluate
from advbnn.fast import cuda_graph
from advbnn.fast.acceleration import accelerate
from advbnn.randomness import seeded
from trained_nets import bnn, digits

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of float32 in float32."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def on_gpu(kind: str, precision: str = "full") -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    """A network, its accelerated form, and a batch."""
    model, (x, y) = NETWORKS[kind]().eval().cuda(), batch()
    return model, accelerate(model, precision=precision), x.cuda(), y.cuda()


@needs_gpu
@pytest.mark.parametrize("kind", NETWORKS)
def test_captured_equals_eager_for_the_same_noise(kind: str, exact: None) -> None:
    model, fast, x, y = on_gpu(kind)
    state = torch.cuda.get_rng_state()
    assert_same(model, fast, x, y)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert fast.engine == "graph"
    assert any(passes.passes for passes in fast._fast[1].values())  # something was captured


@needs_gpu
def test_a_replay_advances_the_generator_as_a_pass_does() -> None:
    model, fast, x, _ = on_gpu("bayesian")
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
    model, fast, x, y = on_gpu("bayesian")
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
def test_gradients_of_several_outputs_of_one_pass(exact: None) -> None:
    """A backward pass overwrites the activations, so the next one needs them again."""
    model, fast, x, _ = on_gpu("bayesian")
    found = []
    for network_ in (model, fast):
        for seed in range(CALLS):
            with seeded(seed, x.device):
                leaf = x.clone().requires_grad_()
                columns = network_(leaf).unbind(1)[:4]
                found.append([torch.autograd.grad(one.sum(), leaf, retain_graph=True)[0] for one in columns])
    assert fast.engine == "graph"
    for expected, gradients in zip(found[:CALLS], found[CALLS:], strict=True):
        for a, b in zip(gradients, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5 * float(b.abs().amax()))


def mixture(count: int, make: Callable[[], nn.Module] = network) -> Modes:
    nets = [make() for _ in range(count)]
    with torch.no_grad():
        for number, net in enumerate(nets):
            for parameter in net.parameters():
                parameter.mul_(1 + 0.1 * number)
    return Modes(nets, range(1, count + 1)).eval()


@needs_gpu
@pytest.mark.parametrize("count", [1, 2, 5])
def test_members_that_share_memory_equal_the_mixture(count: int, exact: None) -> None:
    model = mixture(count).cuda()
    fast, (x, y) = accelerate(model), (t.cuda() for t in batch())
    for average, loss in (("loss", "ce"), ("probability", "ce"), ("probability", "dlr")):
        objective = Objective(loss=loss, average=average)
        for _ in range(CALLS):
            eager, captured = (
                expected_gradient([one.net for one in found], x, y, objective, [one.weight for one in found])
                for found in (model.members(), members(fast))
            )
            for a, b in zip(captured[:3], eager[:3], strict=True):  # values, prediction, gradient
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5 * float(b.abs().amax()))
    # the passes of all members before the first backward pass
    leaf = x.clone().requires_grad_()
    gradients = [torch.autograd.grad(functional.nll_loss(Ensemble(one)(leaf), y), leaf)[0] for one in (model, fast)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5 * float(gradients[0].abs().amax()))
    assert all(one.net.engine == "graph" for one in members(fast))


@needs_gpu
def test_random_members_share_memory_too(exact: None) -> None:
    model = mixture(3, NETWORKS["bayesian"]).cuda()
    x, y = (t.cuda() for t in batch())
    fast = accelerate(model)
    for part, plain in zip(fast.components, model.net, strict=True):
        assert_same(plain, part, x, y)
    assert_same(model, fast, x, y)


@needs_gpu
def test_memory_does_not_grow_with_the_number_of_members() -> None:
    """Ten members need less than three times the memory of one; of their own, they would need ten times as much.

    Nothing of a captured pass stays in use, so all ten leave less than one activation. Gaps between the blocks of the
    pool may make it somewhat larger than that of one member.
    """
    x = torch.rand(512, 3, 32, 32, device="cuda")
    activation = 4 * 512 * 64 * 30 * 30

    def memory() -> tuple[int, int]:
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(), torch.cuda.memory_allocated()

    def needed(count: int) -> tuple[int, int]:
        def make() -> nn.Module:
            head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
            return nn.Sequential(nn.Conv2d(3, 64, 3), nn.Tanh(), nn.Conv2d(64, 64, 3), nn.Tanh(), head)

        fast = accelerate(Modes([make() for _ in range(count)]).cuda().eval())
        before = memory()
        for member in members(fast):
            for _ in range(CALLS):
                leaf = x.clone().requires_grad_()
                torch.autograd.grad(member.net(leaf).sum(), leaf)
        reserved, used = (now - then for now, then in zip(memory(), before, strict=True))
        return reserved, used

    needed(1)  # libraries keep memory of their own from their first call on
    one, ten = needed(1), needed(10)
    assert ten[0] < 3 * one[0]
    assert ten[1] < one[1] + activation


def test_the_garbage_collector_waits_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Destroying an older graph in the middle would break the capture."""
    seen = []

    @contextmanager
    def graph(_graph: object, **_options: object) -> Iterator[None]:
        seen.append(gc.isenabled())
        yield
        seen.append(gc.isenabled())

    monkeypatch.setattr(torch.cuda, "graph", graph)
    with cuda_graph._capture(None):
        pass
    with pytest.raises(KeyError), cuda_graph._capture(None):
        raise KeyError
    assert seen == [False, False, False]
    assert gc.isenabled()


@needs_gpu
def test_graphs_that_are_gone_leave_no_memory() -> None:
    """cuBLAS keeps workspaces for each stream on which it ran: 8 MiB or more, for passes forward and backward."""
    x = torch.rand(8, 16, device="cuda")

    def held() -> int:
        fast, leaf = accelerate(nn.Sequential(nn.Linear(16, 16)).cuda().eval()), x.clone().requires_grad_()
        for _ in range(CALLS):
            torch.autograd.grad(fast(leaf).sum(), leaf)
        assert fast.engine == "graph"
        del fast
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    first = held()
    assert max(held() for _ in range(4)) < first + 16 * 2**20


@needs_gpu
def test_graphs_follow_weights_and_survive_released_scratch_memory(exact: None) -> None:
    model, fast, x, y = on_gpu("bayesian")
    results(fast, x, y)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    model.cuda()  # moves nothing, but releases the memory for noise
    torch.cuda.empty_cache()
    assert_same(model, fast, x, y)


@needs_gpu
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: DataDependent(network()), "synchroniz"),
        (lambda: SampleBank(network()), "random numbers of the CPU"),
    ],
)
def test_networks_that_cannot_be_captured_run_eagerly(
    model: Callable[[], nn.Module], reason: str, caplog: pytest.LogCaptureFixture, exact: None
) -> None:
    caplog.set_level(logging.INFO, "advbnn")
    plain = model().eval().cuda()
    if isinstance(plain, SampleBank):
        plain.add()
        plain.add()
    fast = accelerate(plain, "graph")
    assert_same(plain, fast, *(t.cuda() for t in batch()))
    assert reason in caplog.text
    assert fast.engine == "eager"


@needs_gpu
def test_evaluations_on_a_gpu_agree_between_engines(exact: None) -> None:
    model = copy.deepcopy(bnn()).cuda()
    attacks = {"clean": None, "pgd": ATTACK, "apgd": APGD(Threat("linf", 0.1), steps=5, eot=2, selection_samples=3)}
    options = {"samples": 4, "seeds": 1, "batch_size": 50}
    eager, captured = (evaluate(model, digits(), attacks, engine=engine, **options) for engine in ("eager", "auto"))
    for a, b in zip(eager, captured, strict=True):
        # rounding may change a prediction close to the decision boundary: up to 5% of 120 images
        assert abs(a.correct[0] - b.correct[0]) <= 6
        assert b.versions["engine"] == "graph"


@needs_gpu
def test_bfloat16_is_captured_and_close() -> None:
    model, fast, x, y = on_gpu("bayesian", precision="bf16")
    for a, b in pairs(fast, model, x, y):
        assert (a - b).norm() / b.norm() < 0.25
    assert fast.engine == "graph"
