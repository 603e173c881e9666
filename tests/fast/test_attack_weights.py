"""The weights of an attack: with BatchNorm folded in, they give the same outputs as without."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations

from advbnn import models
from advbnn.bayes.mean_field import bayesianize
from advbnn.fast.attack_weights import AttackWeights, FoldedSamples, attack_weights
from advbnn.fast.fused_net import FusedNet
from advbnn.fast.weights import FixedWeights, SampledWeights
from small_nets import with_statistics

SEED = torch.tensor([5])


def made_for(net: nn.Module, weights: FixedWeights | SampledWeights) -> tuple[AttackWeights, FusedNet]:
    fused_net = FusedNet(net, torch.float32, training=False)
    made = attack_weights(weights, fused_net, dict(net.named_buffers()), compiled=False)
    weights.refresh()
    made.refresh()
    return made, fused_net


def assert_folded_exactly(net: nn.Module, x: Tensor) -> None:
    """Samples that are scaled as they are sampled equal those that are folded afterwards."""
    weights = SampledWeights(bayesianize(with_statistics(net)), torch.float32, lambda name: 0.0)
    made, fused_net = made_for(net, weights)
    assert isinstance(made, FoldedSamples)
    expected = fused_net({**weights.sample(SEED, 3), **dict(net.named_buffers())}, x)
    torch.testing.assert_close(fused_net(made.sample(SEED, 3), x, made.folded), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(fused_net(made.sample(SEED, 4), x, made.folded), expected, atol=1e-4)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_weight_samples_are_folded_exactly(bias: bool, affine: bool) -> None:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4, affine=affine), nn.ReLU()
    second = nn.Conv2d(4, 6, 3, stride=2, bias=bias), nn.BatchNorm2d(6, affine=affine)
    assert_folded_exactly(nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(24, 3)), torch.rand(2, 3, 8, 8))


def test_a_tied_weight_is_sampled_into_all_its_places() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 16))
    net[4].weight = net[3].weight
    assert_folded_exactly(net, torch.rand(2, 1, 4, 4))


def test_partly_random_weights_are_not_folded() -> None:
    net = with_statistics(models.build("small_cnn", image_size=8))
    bnn = bayesianize(net, where=lambda name, p: name.startswith("features.0"))
    made, fused_net = made_for(net, SampledWeights(bnn, torch.float32, lambda name: 0.0))
    assert not made.folded
    assert torch.isfinite(fused_net(made.sample(SEED, 0), torch.rand(2, 3, 8, 8), made.folded)).all()


def test_weights_that_are_computed_from_samples_are_scaled_in_every_pass() -> None:
    torch.manual_seed(0)
    first = parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4), nn.ReLU()
    net = with_statistics(nn.Sequential(*first, nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2), nn.Flatten())).eval()
    weights, x = SampledWeights(bayesianize(net), torch.float32, lambda name: 0.0), torch.rand(2, 3, 8, 8)
    made, fused_net = made_for(net, weights)
    assert not made.folded and len(fused_net.folds) == 2
    expected = functional_call(net, weights.sample(SEED, 3), (x,))
    torch.testing.assert_close(fused_net(made.sample(SEED, 3), x), expected, rtol=1e-4, atol=1e-5)


def test_fixed_weights_are_folded_once_and_follow_updates() -> None:
    torch.manual_seed(0)
    net, x = with_statistics(models.build("small_cnn", image_size=8)).eval(), torch.rand(2, 3, 8, 8)
    weights = FixedWeights(dict(net.named_parameters()), torch.float32)
    made, fused_net = made_for(net, weights)
    for _ in range(2):
        torch.testing.assert_close(fused_net(made.sample(SEED, 0), x, made.folded), net(x), rtol=1e-4, atol=1e-5)
        net[0][0].weight.data.mul_(1.5)
        net[0][1].running_mean.add_(0.2)
        weights.refresh()
        made.refresh()
