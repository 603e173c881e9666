"""Random networks under vmap, grad and the compiler, and what a draw costs."""

from collections import Counter

import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from advbnn.bayes.mean_field import bayesianize
from advbnn.models import build
from advbnn.modules import without_parameter_gradients
from small_nets import conv_net, images


def test_vmap_over_draws_equals_the_loop() -> None:
    bnn, x = bayesianize(conv_net().double()), images().double()
    eps = bnn.noise(4, seed=0)
    at_once = vmap(lambda e: bnn.run(bnn.sample(e), x))(eps)
    one_by_one = torch.stack([bnn.run(bnn.sample(e), x) for e in eps])
    torch.testing.assert_close(at_once, one_by_one, rtol=1e-12, atol=1e-12)


def test_vmap_with_fresh_noise_draws_apart() -> None:
    bnn, x = bayesianize(conv_net()), images()
    outputs = vmap(lambda _: bnn(x), randomness="different")(torch.arange(3))
    assert not torch.equal(outputs[0], outputs[1])


def test_function_transforms_differentiate_the_input() -> None:
    bnn, x = bayesianize(conv_net().double()), images().double()
    with bnn.frozen(seed=0):
        by_transform = torch.func.grad(lambda z: bnn(z).square().sum())(x)
        leaf = x.clone().requires_grad_()
        torch.testing.assert_close(by_transform, torch.autograd.grad(bnn(leaf).square().sum(), leaf)[0])
    assert torch.func.grad(lambda z: bnn(z).sum())(x).shape == x.shape


def test_compiles_into_one_graph() -> None:
    bnn, x = bayesianize(conv_net()), images()
    compiled = torch.compile(bnn, fullgraph=True, backend="aot_eager")
    assert not torch.equal(compiled(x), compiled(x))
    compiled(x).sum().backward()
    assert all(p.grad is not None for p in bnn.parameters())
    with bnn.frozen(seed=1):
        torch.testing.assert_close(compiled(x), bnn(x), rtol=1e-5, atol=1e-5)


def test_compiles_into_one_graph_in_training_mode() -> None:
    bnn = bayesianize(conv_net()).train()
    torch.compile(bnn, fullgraph=True, backend="aot_eager")(images()).square().sum().backward()
    assert bnn.net[1].num_batches_tracked == 1
    assert bnn.net[0].weight.grad.abs().max() > 0
    assert torch.equal(bnn.net[0].bias.grad, torch.zeros(4))


class Ops(TorchDispatchMode):
    """Counts operations that do work; views, detaching and bare allocation do none."""

    FREE = ("detach", "view", "t", "empty", "split_with_sizes", "_unsafe_view", "alias")

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.all = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").split(".")[0]
        self.all += 1
        if name not in self.FREE:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def attack_iteration(model: nn.Module) -> Ops:
    x = torch.rand(1, 3, 32, 32, requires_grad=True)
    with Ops() as ops:
        loss = functional.cross_entropy(model(x), torch.zeros(1, dtype=torch.long), reduction="sum")
        torch.autograd.grad(loss, x)
    return ops


def test_an_attack_iteration_costs_few_operations_more_than_the_plain_network() -> None:
    net = build("vgg16", classes=10, image_size=32).eval()
    plain = attack_iteration(net)
    bnn = bayesianize(net)
    attack_iteration(bnn)
    random = attack_iteration(bnn)
    assert sum(random.counts.values()) <= 110
    assert random.all - plain.all <= 7
    with without_parameter_gradients(bnn):
        assert attack_iteration(bnn).all - plain.all <= 6
