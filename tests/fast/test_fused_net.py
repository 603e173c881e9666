"""The structure that the fast forms compute with, against the network itself."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

from advbnn import models
from advbnn.bayes.mean_field import bayesianize
from advbnn.fast.attack_weights import FoldedSamples, attack_weights
from advbnn.fast.conv_relu import conv_relu
from advbnn.fast.fused_net import FusedConv2d, FusedNet, dense_convolution
from advbnn.fast.weights import FixedWeights, SampledWeights

NETS = [("small_cnn", 8), ("resnet18", 16), ("preact_resnet18", 16), ("model_a_playground", 96), ("mlp", 8)]


def trained(name: str, size: int) -> nn.Module:
    """A network whose statistics are not those it starts with."""
    torch.manual_seed(0)
    net = models.build(name, image_size=size)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    return net


def tensors(net: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


@pytest.mark.parametrize(("name", "size"), NETS)
def test_in_evaluation_mode_it_computes_what_the_network_does(name: str, size: int) -> None:
    net, x = trained(name, size).eval(), torch.rand(2, 3, size, size)
    fused_net = FusedNet(net, torch.float32, training=False)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused_net.structure.modules()) or name == "preact_resnet18"
    torch.testing.assert_close(fused_net(tensors(net), x), net(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "size"), NETS)
def test_in_training_mode_it_updates_the_same_statistics(name: str, size: int) -> None:
    net, x = trained(name, size).train(), torch.rand(4, 3, size, size)
    reference = copy.deepcopy(net)
    outputs = FusedNet(net, torch.float32, training=True)(tensors(net), x)
    torch.testing.assert_close(outputs, reference(x), rtol=1e-3, atol=1e-3)
    for ours, theirs in zip(net.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_pair_that_shares_a_weight_is_not_folded() -> None:
    net = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1), nn.Conv2d(1, 1, 3, padding=1))
    net[2].weight = net[0].weight
    net.eval()
    fused_net, x = FusedNet(net, torch.float32, training=False), torch.rand(2, 1, 4, 4)
    assert fused_net.folds == []
    torch.testing.assert_close(fused_net(tensors(net), x), net(x))


def test_a_tied_weight_is_sampled_into_all_its_places() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 16))
    net[4].weight = net[3].weight
    bnn, x, seed = bayesianize(net), torch.rand(2, 1, 4, 4), torch.tensor([5])
    fused_net, buffers = FusedNet(net, torch.float32, training=False), dict(net.named_buffers())
    weights = SampledWeights(bnn, torch.float32, lambda name: 0.0)
    sampled = FoldedSamples(weights, fused_net, buffers, compiled=False)
    weights.refresh()
    sampled.refresh()
    afterwards = fused_net({**weights.sample(seed, 0), **buffers}, x)
    torch.testing.assert_close(fused_net(sampled.sample(seed, 0), x, sampled.folded), afterwards, rtol=1e-4, atol=1e-5)


def test_a_weight_that_a_hook_computes_is_not_folded() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    net[1].running_mean.add_(0.5)
    prune.random_unstructured(net[0], "weight", amount=0.5)
    net.requires_grad_(False)(torch.rand(1, 1, 4, 4))  # a weight with a history could not be copied
    fused_net, x = FusedNet(net, torch.float32, training=False), torch.rand(2, 1, 4, 4)
    assert fused_net.folds == []
    torch.testing.assert_close(fused_net(tensors(net), x), net(x))


class Skipping(nn.Module):
    """Adds its convolution to its normalisation, in evaluation mode alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.conv(x)
        return self.norm(z) if self.training else z + self.norm(z)


def test_it_has_the_structure_of_its_mode_whatever_the_mode_of_the_network() -> None:
    net, x = Skipping(), torch.rand(2, 1, 4, 4)
    net.norm.running_mean.add_(0.5)
    fused_net = FusedNet(net.train(), torch.float32, training=False)
    torch.testing.assert_close(fused_net(tensors(net), x), net.eval()(x))


@pytest.mark.parametrize(("bias", "affine"), [(True, True), (False, True), (True, False), (False, False)])
def test_weights_scaled_as_they_are_sampled_equal_those_folded_afterwards(bias: bool, affine: bool) -> None:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(3, 4, 3, bias=bias), nn.Conv2d(4, 6, 3, stride=2, bias=bias)]
    norms = [nn.BatchNorm2d(n, affine=affine) for n in (4, 6)]
    layers = [*convolutions[:1], norms[0], nn.ReLU(), *convolutions[1:], norms[1], nn.Flatten(), nn.Linear(24, 3)]
    bnn, x, seed = bayesianize(nn.Sequential(*layers)), torch.rand(2, 3, 8, 8), torch.tensor([5])
    for norm in norms:
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.5, 2)
    buffers = dict(bnn.net.named_buffers())
    fused_net = FusedNet(bnn.net, torch.float32, training=False)
    weights = SampledWeights(bnn, torch.float32, lambda name: 0.0)
    sampled = attack_weights(weights, fused_net, buffers, compiled=False)
    assert isinstance(sampled, FoldedSamples)
    weights.refresh()
    sampled.refresh()
    afterwards = fused_net({**weights.sample(seed, 3), **buffers}, x)
    torch.testing.assert_close(fused_net(sampled.sample(seed, 3), x, sampled.folded), afterwards, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(fused_net(sampled.sample(seed, 4), x, sampled.folded), afterwards, atol=1e-4)


def test_weights_that_are_partly_random_are_folded_by_the_fused_net_itself() -> None:
    bnn = bayesianize(trained("small_cnn", 8), where=lambda name, p: name.startswith("features.0"))
    fused_net = FusedNet(bnn.net, torch.float32, training=False)
    weights = SampledWeights(bnn, torch.float32, lambda name: 0.0)
    sampled = attack_weights(weights, fused_net, dict(bnn.net.named_buffers()), compiled=False)
    assert not sampled.folded
    weights.refresh()
    assert torch.isfinite(fused_net(sampled.sample(torch.tensor([1]), 0), torch.rand(2, 3, 8, 8), sampled.folded)).all()


def test_fixed_weights_are_folded_once_and_follow_updates() -> None:
    net, x = trained("small_cnn", 8).eval(), torch.rand(2, 3, 8, 8)
    fused_net = FusedNet(net, torch.float32, training=False)
    weights = FixedWeights(dict(net.named_parameters()), torch.float32)
    folded = attack_weights(weights, fused_net, dict(net.named_buffers()), compiled=False)
    for _ in range(2):
        weights.refresh()
        folded.refresh()
        torch.testing.assert_close(fused_net(folded.sample(torch.tensor([0]), 0), x, folded.folded), net(x))
        net[0][0].weight.data.mul_(1.5)
        net[0][1].running_mean.add_(0.2)


@pytest.mark.parametrize("bias", [True, False])
def test_the_dense_form_of_a_convolution_of_2x2_images(bias: bool) -> None:
    conv = nn.Conv2d(3, 5, 3, padding=1, bias=bias).double()
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(dense_convolution(x, conv.weight, conv.bias), conv(x))
    ours, theirs = (
        torch.autograd.grad(f.square().sum(), x)[0] for f in (dense_convolution(x, conv.weight, conv.bias), conv(x))
    )
    torch.testing.assert_close(ours, theirs)


def test_a_convolution_that_clips() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(4, 3, 3, 3).double(), torch.randn(4).double()
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64, requires_grad=True)

    def clipping(z: torch.Tensor) -> torch.Tensor:
        return conv_relu(z, weight, bias, (2, 2), (1, 1), (1, 1), 1)

    torch.testing.assert_close(clipping(x), functional.conv2d(x, weight, bias, stride=2, padding=1).relu())
    assert torch.autograd.gradcheck(clipping, x)
    torch.library.opcheck(conv_relu, (x.detach(), weight, bias, [1, 1], [1, 1], [1, 1], 1), test_utils="test_schema")


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
