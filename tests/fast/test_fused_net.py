"""The fused network against the network itself."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

from advbnn import models
from advbnn.fast.fused_net import FusedConv2d, FusedNet, conv_relu, dense_convolution
from small_nets import ConvNorm, skips_when_evaluated, with_statistics

NETS = [("small_cnn", 8), ("resnet18", 16), ("preact_resnet18", 16), ("model_a_playground", 96), ("mlp", 8)]


def trained(name: str, size: int) -> nn.Module:
    """A network in double precision whose running statistics are not the initial ones."""
    torch.manual_seed(0)
    return with_statistics(models.build(name, image_size=size).double())


def tensors(net: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def assert_equal_in_evaluation_mode(net: nn.Module, x: torch.Tensor) -> FusedNet:
    fused_net = FusedNet(net, torch.float32, training=False)
    torch.testing.assert_close(fused_net(tensors(net), x), net.eval()(x).float(), rtol=1e-5, atol=1e-5)
    return fused_net


@pytest.mark.parametrize(("name", "size"), NETS)
def test_in_evaluation_mode_batchnorm_is_folded(name: str, size: int) -> None:
    fused_net = assert_equal_in_evaluation_mode(trained(name, size), torch.rand(2, 3, size, size).double())
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused_net.structure.modules()) or name == "preact_resnet18"


@pytest.mark.parametrize(("name", "size"), NETS)
def test_in_training_mode_it_updates_the_same_statistics(name: str, size: int) -> None:
    net, x = trained(name, size).train(), torch.rand(4, 3, size, size).double()
    reference = copy.deepcopy(net)
    outputs = FusedNet(net, torch.float32, training=True)(tensors(net), x)
    torch.testing.assert_close(outputs, reference(x).float(), rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(net.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_pair_that_shares_a_weight_is_not_folded() -> None:
    net = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1), nn.Conv2d(1, 1, 3, padding=1))
    net[2].weight = net[0].weight
    assert assert_equal_in_evaluation_mode(net, torch.rand(2, 1, 4, 4)).folds == []


def test_a_weight_that_a_hook_computes_is_not_folded() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    net[1].running_mean.add_(0.5)
    prune.random_unstructured(net[0], "weight", amount=0.5)
    net.requires_grad_(False)(torch.rand(1, 1, 4, 4))  # a weight with a history could not be copied
    assert assert_equal_in_evaluation_mode(net, torch.rand(2, 1, 4, 4)).folds == []


def test_its_structure_depends_on_its_own_mode_and_not_on_the_networks() -> None:
    net = ConvNorm(skips_when_evaluated).train()
    net.norm.running_mean.add_(0.5)
    assert_equal_in_evaluation_mode(net, torch.rand(2, 1, 4, 4))


@pytest.mark.parametrize("bias", [True, False])
def test_a_dense_convolution_of_2x2_images_equals_the_convolution(bias: bool) -> None:
    conv = nn.Conv2d(3, 5, 3, padding=1, bias=bias).double()
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    ours, theirs = dense_convolution(x, conv.weight, conv.bias), conv(x)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_images_keep_their_precision_in_the_first_convolution() -> None:
    fused_net = FusedNet(models.build("small_cnn", image_size=8, channels=1), torch.bfloat16, training=False)
    first = next(m for m in fused_net.structure.modules() if isinstance(m, nn.Conv2d))
    assert isinstance(first, FusedConv2d) and first.sees_images
    edge = FusedConv2d(1, 1, (1, 2), bias=False)
    edge.sees_images = True
    edge.weight.data.copy_(torch.tensor([1.0, -1.0]).view(1, 1, 1, 2))
    x = torch.tensor([0.75 + 2.0**-12, 0.75]).view(1, 1, 1, 2)  # an edge that bfloat16 pixels do not have
    with torch.autocast("cpu", torch.bfloat16):
        assert functional.conv2d(x, edge.weight).item() == 0
        assert edge(x).item() == 2.0**-12


def test_a_fused_convolution_and_relu_has_the_outputs_and_input_gradients_of_the_two() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(4, 3, 3, 3).double(), torch.randn(4).double()
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64, requires_grad=True)

    def fused(z: torch.Tensor) -> torch.Tensor:
        return conv_relu(z, weight, bias, (2, 2), (1, 1), (1, 1), 1)

    torch.testing.assert_close(fused(x), functional.conv2d(x, weight, bias, stride=2, padding=1).relu())
    assert torch.autograd.gradcheck(fused, x)
    torch.library.opcheck(conv_relu, (x.detach(), weight, bias, [1, 1], [1, 1], [1, 1], 1), test_utils="test_schema")
