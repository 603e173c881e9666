"""What an attack costs: gradients, queries, memory and waits for the device."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from advbnn.attacks import APGD, PGD, Attack
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from every_attack import ATTACKS, CLASSES, GRADIENT_ATTACKS, LINF, images, small_net

both = pytest.mark.parametrize("convert", [lambda net: net, bayesianize], ids=["plain", "bayesian"])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
@pytest.mark.parametrize("pick", ["last", "best"])
def test_the_batch_is_halved_when_memory_runs_out(error, pick):
    class Limited(nn.Module):
        def __init__(self, limit):
            super().__init__()
            self.net, self.limit, self.sizes = small_net(dtype=torch.float64), limit, []

        def forward(self, x):
            self.sizes.append(len(x))
            if len(x) > self.limit:
                raise error
            return self.net(x)

    (x, y), attack = images(11, dtype=torch.float64), PGD(LINF, steps=3, pick=pick)
    for batch_size, too_large in ((None, [11, 6]), (3, [])):
        limited = Limited(3)
        x_adv = replace(attack, batch_size=batch_size)(limited, x, y, seed=0)
        torch.testing.assert_close(x_adv, attack(limited.net, x, y, seed=0), atol=1e-6, rtol=0)
        assert [size for size in limited.sizes if size > 3] == too_large
    with pytest.raises(type(error), match="memory"):
        attack(Limited(0), x, y)


class ConvolutionMasks(TorchDispatchMode):
    """Records which gradients every convolution's backward pass computes: (input, weight, bias)."""

    def __init__(self) -> None:
        super().__init__()
        self.masks = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution_backward.default:
            self.masks.add(tuple(args[10]))
        return func(*args, **(kwargs or {}))


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.Flatten(), nn.Linear(4, CLASSES)
    )


@both
@pytest.mark.parametrize("name", ATTACKS)
def test_no_weight_gradient_is_computed(name, convert):
    with ConvolutionMasks() as seen:
        ATTACKS[name](LINF, eot=2)(convert(conv_net()), *images(), seed=0)
    assert seen.masks == ({(True, False, False)} if name in GRADIENT_ATTACKS else set())


@both
def test_no_weight_gradient_is_computed_by_a_compiled_model(convert):
    """A compiler builds the backward pass for everything that requires a gradient at the first call."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    masks = set()

    def look(graph, inputs):
        backward = torch.ops.aten.convolution_backward.default
        masks.update(tuple(node.args[10]) for node in graph.graph.nodes if node.target is backward)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    model = torch.compile(convert(conv_net()), backend=aot_autograd(fw_compiler=look, bw_compiler=look))
    PGD(LINF, steps=2)(model, *images(), seed=0)
    torch._dynamo.reset()
    assert masks == {(True, False, False)}


def test_a_compiled_model_is_compiled_for_the_steps_alone():
    graphs = []

    def look(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    PGD(LINF, steps=2, eot=2)(torch.compile(conv_net().eval(), backend=look, dynamic=False), *images(), seed=0)
    torch._dynamo.reset()
    assert len(graphs) == 1


def test_queries_count_every_weight_sample():
    (x, y), bnn = images(), bayesianize(small_net())
    for attack, expected in {
        PGD(LINF, steps=5): 5,
        PGD(LINF, steps=5, eot=4): 20,
        PGD(LINF, steps=5, eot=4, average="probability"): 20,
        PGD(LINF, steps=5, eot=4, average="logits"): 40,
        PGD(LINF, steps=5, eot=4, restarts=2, selection_samples=7): 2 * (20 + 7),
    }.items():
        assert attack.run(bnn, x, y).queries.tolist() == [expected] * 6
    # a deterministic network needs one sample
    assert PGD(LINF, steps=5, eot=4).run(small_net(), x, y).queries.tolist() == [5] * 6


class Looks(TorchDispatchMode):
    """Counts operations whose results the host must know, for which it would wait for a GPU."""

    LOOKS = frozenset(
        getattr(torch.ops.aten, name).default for name in ("_local_scalar_dense", "nonzero", "masked_select", "equal")
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        # integers are random states and seeds, which live on the host
        if op in self.LOOKS and args[0].dtype in (torch.bool, torch.float32, torch.float64):
            self.count += 1
        return op(*args, **(kwargs or {}))


def run(attack: Attack, device: str = "cpu") -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(6, 4, generator=generator).to(device), (torch.arange(6) % 3).to(device)
    attack(bayesianize(nn.Sequential(nn.Linear(4, 3)), init_std=0.1).eval().to(device), x, y, seed=0)


WAITING = [
    PGD(LINF),
    PGD(LINF, eot=3, average="probability", pick="best", momentum=0.9),
    PGD(Threat("l2", 0.5), restarts=2),
    APGD(LINF, eot=2, selection_samples=2),
    APGD(Threat("l1", 0.5), loss="dlr"),
]


@pytest.mark.parametrize("attack", WAITING, ids=repr)
def test_steps_of_gradient_attacks_do_not_wait_for_the_device(attack: Attack) -> None:
    counts = []
    for steps in (2, 9):
        with Looks() as looks:
            run(replace(attack, steps=steps))
        counts.append(looks.count)
    assert counts[0] == counts[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("attack", WAITING, ids=repr)
def test_an_attack_waits_for_the_device_a_few_times(attack: Attack) -> None:
    run(attack, "cuda")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run(replace(attack, steps=9), "cuda")
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in caught if "synchronizing CUDA operation" in str(warning.message)]
    # transfers of the inputs, the model and the labels; then the checks of inputs, labels, outputs and gradients
    assert len(waits) <= 12
