"""Sums in a traced graph, fused with the convolution before them and the ReLU after them."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional

from advbnn import models
from advbnn.fast.fused_conv import CONV_RELU
from advbnn.fast.fused_net import FusedNet
from advbnn.fast.fused_sums import fuse_sums


def traced(function: Callable[..., Any], graphs: list[fx.GraphModule]) -> Callable[..., Any]:
    """The function, run as its graph with fused sums."""

    def run(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(fuse_sums(module))
        return graphs[-1].forward

    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, backend=run)
    return compiled


def fused(graphs: list[fx.GraphModule]) -> int:
    """Calls with something to be added."""
    (graph,) = graphs
    return sum(node.target is CONV_RELU and node.args[3] is not None for node in graph.graph.nodes)


def after_a_change(y: Tensor, z: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
    total = y + z
    change(z)
    return functional.relu(total) + z


def after_another_sum(y: Tensor, z: Tensor) -> Tensor:
    other = z * 2
    other.relu_()
    return functional.relu(y + z) + other


USES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "a sum": (lambda y, z: functional.relu(y + z), 1),
    "the other way round": (lambda y, z: torch.relu(torch.add(z, y)), 1),
    "in place": (lambda y, z: functional.relu(operator.iadd(y, z), inplace=True), 1),
    "into the other, which others see": (lambda y, z: torch.relu(operator.iadd(z, y)), 0),
    "without a sum": (lambda y, z: torch.relu(y), 0),
    "with itself": (lambda y, z: torch.relu(y + y), 0),
    "with a number": (lambda y, z: torch.relu(y + 1), 0),
    "broadcast": (lambda y, z: torch.relu(y + z[:1, :, :1, :1]), 0),
    "with a factor": (lambda y, z: torch.relu(torch.add(z, y, alpha=2)), 0),
    "before a change of z": (lambda y, z: after_a_change(y, z, lambda t: functional.relu(t, inplace=True)), 1),
    "before a change of z by a method": (lambda y, z: after_a_change(y, z, lambda t: t.mul_(2)), 1),
    "something else changed in between": (after_another_sum, 0),
    "by name": (lambda y, z: functional.relu(input=y + z), 0),
    "used twice": (lambda y, z: torch.relu(y + z) + y, 0),
    "sum used twice": (lambda y, z: (s := y + z) * torch.relu(s), 0),
}


@pytest.mark.parametrize("use", USES)
def test_what_is_fused_and_that_it_is_the_same(use: str) -> None:
    torch.manual_seed(0)
    function, expected = USES[use]
    x, weight, bias = (torch.randn(*shape).double() for shape in ((2, 3, 6, 6), (4, 3, 3, 3), (4,)))
    z, graphs = torch.randn(2, 4, 6, 6).double(), []

    def whole(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        other = z * 1  # which may be changed in place
        return function(functional.conv2d(x, weight, bias, (1, 1), (1, 1), (1, 1), 1), other), other

    found = []
    for run in (whole, traced(whole, graphs)):
        leaves = x.clone().requires_grad_(), z.clone().requires_grad_()
        outputs, other = run(*leaves)
        slopes = torch.autograd.grad((outputs + other).square().sum(), leaves)
        found.append((outputs, other, *slopes))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert fused(graphs) == expected


@pytest.mark.parametrize("settings", [(1, 1, 1, 1), ((1, 1), "same", (1, 1), 1)], ids=["numbers", "a word"])
def test_other_settings_of_a_convolution_are_left_to_torch(settings: tuple[Any, ...]) -> None:
    graphs: list[fx.GraphModule] = []
    x, weight, bias = torch.randn(2, 3, 6, 6), torch.randn(3, 3, 3, 3), torch.randn(3)
    whole = lambda x: torch.relu(torch.conv2d(x, weight, bias, *settings) + x)  # noqa: E731
    torch.testing.assert_close(traced(whole, graphs)(x), whole(x))
    assert fused(graphs) == 0


def test_what_autocast_would_convert_is_left_to_torch() -> None:
    graphs: list[fx.GraphModule] = []
    x, weight, bias = torch.randn(2, 3, 6, 6).bfloat16(), torch.randn(3, 3, 1, 1), torch.randn(3)

    def whole(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.relu(torch.conv2d(x, weight, bias, (1, 1), (0, 0), (1, 1), 1) + x)

    torch.testing.assert_close(traced(whole, graphs)(x), whole(x))
    assert fused(graphs) == 0


def test_weights_with_a_gradient_stay_apart() -> None:
    weight, graphs = torch.randn(3, 3, 1, 1, requires_grad=True), []
    run = traced(lambda w, x: torch.relu(torch.conv2d(x, w, w[0, :, 0, 0], (1, 1), (0, 0), (1, 1), 1) + x), graphs)
    run(weight, torch.randn(2, 3, 4, 4)).sum().backward()
    assert fused(graphs) == 0 and weight.grad is not None


def test_every_residual_sum_of_a_resnet_is_fused() -> None:
    net = models.build("resnet18", classes=10, image_size=8, channels=3).eval()
    tensors = {name: one.detach() for name, one in (*net.named_parameters(), *net.named_buffers())}
    attacking, graphs = FusedNet(net, torch.float32, training=False), []

    def logits(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        return attacking(tensors, x)

    x = torch.rand(2, 3, 8, 8, requires_grad=True)
    outputs, expected = traced(logits, graphs)(tensors, x), net(x)
    assert fused(graphs) == 8
    # folding rounds the weights of twenty layers
    torch.testing.assert_close(outputs, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
    ours, theirs = (torch.autograd.grad(one.square().sum(), x)[0] for one in (outputs, expected))
    # rounding may take a ReLU across its kink, which moves a few entries by a percent
    assert (ours - theirs).norm() < 0.05 * theirs.norm()
