"""Pairs of convolution and BatchNorm: found by tracing, and folded exactly."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

from advbnn import models
from advbnn.defenses.rse import add_noise
from advbnn.models.conv_bn import ConvBN, conv_bn_pairs, scaled, scales_and_shifts
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
    pair = [ConvBN("0", "1", "2", True)]
    for candidate in (net, add_noise(net)):
        assert conv_bn_pairs(candidate, training=False) == pair
    net[0].register_forward_hook(lambda module, args, output: 2 * output)
    assert conv_bn_pairs(net, training=False) == []


def test_a_weight_that_a_parametrization_computes_is_no_obstacle_and_a_computed_bias_is() -> None:
    net = nn.Sequential(parametrizations.weight_norm(nn.Conv2d(1, 2, 3)), nn.BatchNorm2d(2), nn.ReLU())
    assert conv_bn_pairs(net, training=False) == [ConvBN("0", "1", "2", True)]
    parametrize.register_parametrization(net[0], "bias", nn.Identity())
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


def test_a_computed_weight_that_is_used_a_second_time_is_no_pair() -> None:
    net = ConvNorm(lambda net, x: net.norm(net.conv(x)) + net.conv.weight.sum())
    parametrizations.weight_norm(net.conv)
    assert conv_bn_pairs(net, training=False) == []


class Untraceable(nn.Module):
    """Branches on its data, before and after it uses what is inside."""

    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.inside = nn.Sequential(*inside)

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) if x.sum() > 0 else x


def test_modules_that_cannot_be_traced_hide_only_what_is_inside() -> None:
    pair = nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)
    net = nn.Sequential(
        *pair, Untraceable(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)), nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)
    )
    assert [found.conv for found in conv_bn_pairs(net, training=False)] == ["0", "3"]
    for shared in pair:  # used again where the trace does not see it
        assert conv_bn_pairs(nn.Sequential(*pair, Untraceable(shared)), training=False) == []
    relu = nn.ReLU()
    net = nn.Sequential(*pair, relu, Untraceable(relu))
    assert [found.relu for found in conv_bn_pairs(net, training=False)] == [None]


def test_reading_what_a_weight_is_computed_from_is_no_obstacle() -> None:
    net = ConvNorm(lambda net, x: net.norm(net.conv(x)) + net.conv.parametrizations.weight.original0.sum())
    parametrizations.weight_norm(net.conv)
    assert len(conv_bn_pairs(net, training=False)) == 1  # the fold leaves it as it is


ACTIVATED: dict[str, tuple[Callable[[ConvNorm, Tensor], Tensor], bool]] = {
    "a module": (lambda net, x: net.relu(net.norm(net.conv(x))), True),
    "a module that is used twice": (lambda net, x: net.relu(net.norm(net.conv(net.relu(x)))), True),
    "a function": (lambda net, x: functional.relu(net.norm(net.conv(x)), inplace=True), True),
    "a method": (lambda net, x: net.norm(net.conv(x)).relu(), True),
    "after a sum": (lambda net, x: net.relu(net.norm(net.conv(x)) + x.mean()), True),
    "after a sum the other way round": (lambda net, x: torch.relu(torch.add(x.mean(), net.norm(net.conv(x)))), True),
    "after a sum that is used twice": (lambda net, x: (z := net.norm(net.conv(x)) + 1).relu() + z, False),
    "after a product": (lambda net, x: net.relu(net.norm(net.conv(x)) * 2), False),
    "before the convolution": (lambda net, x: net.norm(net.conv(net.relu(x))), False),
}


@pytest.mark.parametrize("use", ACTIVATED)
def test_finds_the_relu_after_a_pair_or_after_a_sum(use: str) -> None:
    rule, expected = ACTIVATED[use]
    net = ConvNorm(rule)
    net.relu = nn.ReLU()
    (pair,) = conv_bn_pairs(net, training=False)
    assert pair.activated is expected
    assert (pair.relu is not None) == (use == "a module")


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
def test_folded_convolutions_equal_the_pairs(affine: bool, bias: bool) -> None:
    torch.manual_seed(0)
    pairs = [
        (nn.Conv2d(3, n, 3, bias=bias).double(), nn.BatchNorm2d(n, eps, affine=affine).double().eval())
        for n, eps in ((5, 1e-5), (2, 0.1))
    ]
    for _, norm in pairs:
        for tensor in (*norm.parameters(), norm.running_mean, norm.running_var):
            tensor.data.uniform_(0.5, 2)
    x = torch.randn(2, 3, 6, 6).double()
    norms, eps = [norm.state_dict() for _, norm in pairs], [norm.eps for _, norm in pairs]
    folded = scales_and_shifts(norms, eps, [conv.bias for conv, _ in pairs] if bias else None)
    for (conv, norm), factor, shift in zip(pairs, *folded, strict=True):
        outputs = functional.conv2d(x, scaled(conv.weight, factor), shift)
        torch.testing.assert_close(outputs, norm(conv(x)), rtol=1e-12, atol=1e-12)
