"""Pairs of convolution and BatchNorm: found by tracing, and folded exactly."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn import models
from advbnn.defenses.rse import add_noise
from advbnn.models.conv_bn import ConvBN, conv_bn_pairs, fold
from small_nets import ConvNorm, skips_when_evaluated


@pytest.mark.parametrize(
    ("name", "size", "pairs", "with_relu"),
    [
        ("vgg16", 32, 13, 13),
        ("resnet18", 32, 20, 9),
        ("preact_resnet18", 32, 8, 8),
        ("model_a", 96, 6, 6),
        ("mlp", 8, 0, 0),
    ],
)
def test_finds_the_pairs_of_the_networks(name: str, size: int, pairs: int, with_relu: int) -> None:
    found = conv_bn_pairs(models.build(name, image_size=size), training=True)
    assert len(found) == pairs
    assert sum(pair.relu is not None for pair in found) == with_relu


def test_a_pre_hook_is_no_obstacle_and_a_forward_hook_is() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    pair = [ConvBN("0", "1", "2")]
    for candidate in (net, add_noise(net)):
        assert conv_bn_pairs(candidate, training=False) == pair
    net[0].register_forward_hook(lambda module, args, output: 2 * output)
    assert conv_bn_pairs(net, training=False) == []


OTHER_USES: dict[str, Callable[[ConvNorm, Tensor], Tensor]] = {
    "the output of the convolution is used twice": lambda net, x: (z := net.conv(x)) + net.norm(z),
    "so is the pair": lambda net, x: net.norm(net.conv(x)) + net.norm(net.conv(2 * x)),
    "the network branches on its data": lambda net, x: net.norm(net.conv(x)) if x.sum() > 0 else x,
    "the bias is used a second time": lambda net, x: net.norm(net.conv(x)) + net.conv.bias.sum(),
}


@pytest.mark.parametrize("use", OTHER_USES)
def test_other_uses_of_a_convolution_are_no_pair(use: str) -> None:
    assert conv_bn_pairs(ConvNorm(OTHER_USES[use]), training=True) == []


@pytest.mark.parametrize("training", [True, False])
def test_code_may_depend_on_the_mode(training: bool) -> None:
    net = ConvNorm(skips_when_evaluated).train(not training)
    assert len(conv_bn_pairs(net, training=training)) == training
    assert net.training is not training


def test_tracing_changes_neither_the_network_nor_the_random_state() -> None:
    def remember(net: ConvNorm, x: Tensor) -> Tensor:
        net.seen = net.conv(x)
        return torch.rand(()) * net.norm(net.seen)

    net, before = ConvNorm(remember), torch.get_rng_state()
    assert len(conv_bn_pairs(net, training=True)) == 1
    assert not hasattr(net, "seen")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_folded_convolution_equals_the_pair(affine: bool, bias: bool) -> None:
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 5, 3, bias=bias).double(), nn.BatchNorm2d(5, affine=affine).double().eval()
    for tensor in (*norm.parameters(), norm.running_mean, norm.running_var):
        tensor.data.uniform_(0.5, 2)
    x = torch.randn(2, 3, 6, 6).double()
    weight, shift = fold(conv.weight, conv.bias, norm.eps, norm.state_dict())
    torch.testing.assert_close(functional.conv2d(x, weight, shift), norm(conv(x)), rtol=1e-12, atol=1e-12)
