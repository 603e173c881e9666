"""What an attack spends: gradients, queries and memory."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from advbnn import attacks
from advbnn.bayes.mean_field import bayesianize
from every_attack import ATTACKS, CLASSES, GRADIENT_ATTACKS, LINF, images, small_net


class Hungry(nn.Module):
    """Runs out of memory above a size of batch."""

    def __init__(self, net: nn.Module, limit: int, error: Exception) -> None:
        super().__init__()
        self.net, self.limit, self.error, self.sizes = net, limit, error, []

    def forward(self, x):
        self.sizes.append(len(x))
        if len(x) > self.limit:
            raise self.error
        return self.net(x)


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_the_batch_is_halved_when_memory_runs_out(error):
    x, y = images(11)
    attack = attacks.PGD(LINF, steps=3)
    net = small_net()
    hungry = Hungry(net, 3, error)
    torch.testing.assert_close(attack(hungry, x, y, seed=0), attack(net, x, y, seed=0), atol=1e-6, rtol=0)
    assert max(hungry.sizes[2:]) <= 6 and hungry.sizes[-1] <= 3
    with pytest.raises(type(error), match="memory"):
        attack(Hungry(net, 0, error), x, y)


class ConvolutionMasks(TorchDispatchMode):
    """Notes which gradients every convolution's backward pass was asked for: (input, weight, bias)."""

    def __init__(self) -> None:
        super().__init__()
        self.masks = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution_backward.default:
            self.masks.append(tuple(args[10]))
        return func(*args, **(kwargs or {}))


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.Flatten(), nn.Linear(4, CLASSES)
    )


@pytest.mark.parametrize("convert", [lambda net: net, bayesianize], ids=["plain", "bayesian"])
@pytest.mark.parametrize("name", ATTACKS)
def test_no_weight_gradient_is_computed(name, convert):
    model = convert(conv_net())
    with ConvolutionMasks() as seen:
        ATTACKS[name](LINF, eot=2)(model, *images(), seed=0)
    if seen.masks:
        assert set(seen.masks) == {(True, False, False)}
    else:
        assert name not in GRADIENT_ATTACKS


@pytest.mark.parametrize("convert", [lambda net: net, bayesianize], ids=["plain", "bayesian"])
def test_no_weight_gradient_is_computed_by_a_compiled_model(convert):
    """A compiler builds the backward pass for all that asks for a gradient when the model is first called."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    masks = []

    def look(graph, inputs):
        masks.extend(
            tuple(node.args[10])
            for node in graph.graph.nodes
            if node.target is torch.ops.aten.convolution_backward.default
        )
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    model = torch.compile(convert(conv_net()), backend=aot_autograd(fw_compiler=look, bw_compiler=look))
    attacks.PGD(LINF, steps=2)(model, *images(), seed=0)
    torch._dynamo.reset()
    assert masks and set(masks) == {(True, False, False)}


def test_queries_count_every_draw():
    x, y = images()
    bnn = bayesianize(small_net())
    cost = {
        attacks.PGD(LINF, steps=5): 5,
        attacks.PGD(LINF, steps=5, eot=4): 20,
        attacks.PGD(LINF, steps=5, eot=4, average="probability"): 40,
        attacks.PGD(LINF, steps=5, eot=4, restarts=2, selection_samples=7): 2 * (20 + 7),
    }
    for attack, expected in cost.items():
        assert attack.run(bnn, x, y).queries.tolist() == [expected] * 6
    # one pass says all there is to know about a deterministic network
    assert attacks.PGD(LINF, steps=5, eot=4).run(small_net(), x, y).queries.tolist() == [5] * 6
