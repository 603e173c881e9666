"""The fused network against the network itself."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune

from advbnn import models
from advbnn.defenses.pni import SHARING, WeightNoise
from advbnn.defenses.registry import ONE_NETWORK
from advbnn.defenses.rse import add_noise
from advbnn.fast.fused_net import FusedNet
from advbnn.models.resnet import Residual
from advbnn.randomness import seeded
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


def residual_net() -> nn.Sequential:
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
    blocks = Residual(8, 8, 1), Residual(8, 16, 2)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def in_double(net: nn.Module) -> nn.Module:
    return with_statistics(net.double()).eval()


def assert_equal_in_double(net: nn.Module, x: torch.Tensor) -> FusedNet:
    """Outputs and gradients of the same noise, up to the rounding of sums of 10^3 products in a dozen layers."""
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    kinds = [type(part) for part in net.modules()]
    fused = FusedNet(net, torch.float32, training=False)
    placed = fused.fold({name: tensor.detach() for name, tensor in tensors(net).items()})
    results = []
    for run in (net, lambda leaf: functional_call(fused.structure, placed, (leaf,), tie_weights=False)):
        leaf = x.clone().requires_grad_()
        with seeded(3):
            outputs = run(leaf)
        results.append((outputs.detach(), *torch.autograd.grad(outputs.square().sum(), leaf)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10 * float(theirs.abs().max()))
    # the network itself is as it was
    assert kinds == [type(part) for part in net.modules()]
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    return fused


class RandomSigns(nn.Module):
    """A user's own random weight."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * (torch.rand(weight.shape, dtype=weight.dtype) - 0.3).sign()


def parametrized(make: Callable[[nn.Conv2d], nn.Module]) -> nn.Sequential:
    net = residual_net()
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            make(part)
    return net


PARAMETRIZATIONS: dict[str, Callable[[nn.Conv2d], nn.Module]] = {
    **{
        f"noise for each {sharing}": lambda conv, sharing=sharing: parametrize.register_parametrization(
            conv, "weight", WeightNoise(conv.weight, sharing)
        )
        for sharing in SHARING
    },
    "random signs": lambda conv: parametrize.register_parametrization(conv, "weight", RandomSigns()),
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "noise on a norm": lambda conv: parametrize.register_parametrization(
        parametrizations.weight_norm(conv), "weight", RandomSigns()
    ),
}


@pytest.mark.parametrize("kind", PARAMETRIZATIONS)
def test_batchnorm_is_folded_into_a_weight_that_is_computed_in_every_pass(kind: str) -> None:
    net = in_double(parametrized(PARAMETRIZATIONS[kind]))
    fused = assert_equal_in_double(net, torch.rand(3, 3, 8, 8).double())
    assert len(fused.folds) == 6
    assert all(fold.computed for fold in fused.folds)


NOT_FOLDED = {"rna": 6, "rpf": 1, "dcs": 1}
"""BatchNorms that are one of two norms, or follow a layer that computes its weight in its own code."""


@pytest.mark.parametrize(
    "name", ["pni", "wca", "learn2perturb", "lwta", "sap", "resize_pad", "mc_dropout", "ctrw", *NOT_FOLDED, "rse"]
)
def test_defences_are_folded_and_equal_for_the_same_noise(name: str) -> None:
    net = residual_net()
    if name == "rse":
        net = add_noise(net)
    else:
        how = {"image_size": 8} if name in ("learn2perturb", "ctrw") else {}
        net = type(ONE_NETWORK[name].network)(**how).wrap(net)
    fused = assert_equal_in_double(in_double(net), torch.rand(3, 3, 8, 8).double())
    assert len(fused.folds) == 6 - NOT_FOLDED.get(name, 0)


def test_pairs_with_different_parameters_are_folded_beside_each_other() -> None:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4, eps=0.1), nn.ReLU()
    second = nn.Conv2d(4, 5, 3, stride=2, bias=False), nn.BatchNorm2d(5, affine=False), nn.ReLU()
    third = nn.Conv2d(5, 6, 1), nn.BatchNorm2d(6), nn.Conv2d(6, 7, 1), nn.BatchNorm2d(7)
    third[1].bias = None
    net = nn.Sequential(*first, *second, *third)
    for norm in (net[1], net[7], net[9]):
        nn.init.uniform_(norm.weight, -2, 2)
    assert len(assert_equal_in_double(in_double(net), torch.rand(2, 3, 8, 8).double()).folds) == 4


def test_what_prevents_folding_of_a_computed_weight() -> None:
    def changed(change: Callable[[nn.Sequential], object]) -> nn.Module:
        net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        for conv in (net[0], net[2]):
            PARAMETRIZATIONS["noise for each layer"](conv)
        change(net)
        return in_double(net)

    def stays_in_training_mode(net: nn.Sequential) -> None:
        net[1].train = lambda mode=True: net[1]

    x = torch.rand(2, 1, 4, 4).double()
    assert len(assert_equal_in_double(changed(lambda net: None), x).folds) == 2
    doubled = changed(lambda net: net[0].register_forward_hook(lambda module, args, output: 2 * output))
    assert len(assert_equal_in_double(doubled, x).folds) == 1
    # used twice
    assert len(assert_equal_in_double(changed(lambda net: net.append(net[1])), x).folds) == 1
    net = changed(lambda net: None)
    net[3].bias = net[1].bias
    assert assert_equal_in_double(net, x).folds == []
    with_statistics_of_the_batch = changed(stays_in_training_mode)
    assert [fold.norm for fold in FusedNet(with_statistics_of_the_batch, torch.float32, training=False).folds] == ["3"]


def test_weights_that_are_computed_are_never_folded_in_training_mode() -> None:
    net = with_statistics(parametrized(PARAMETRIZATIONS["weight norm"]).double()).train()
    x, reference = torch.rand(3, 3, 8, 8).double(), copy.deepcopy(net)
    fused = FusedNet(net, torch.float32, training=True)
    assert fused.folds == []
    torch.testing.assert_close(fused(tensors(net), x), reference(x).float(), rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(net.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
