import pytest
import torch
from torch import nn

from advbnn import models
from advbnn.defenses.rna import RandomNorm2d, RandomNorms
from advbnn.errors import ArgumentError
from advbnn.randomness import resample


def with_choice(layer: RandomNorm2d, batch: bool) -> RandomNorm2d:
    layer.use_batch.fill_(batch)
    return layer


def test_it_is_one_of_the_two_norms() -> None:
    norm, x = nn.BatchNorm2d(4), torch.randn(8, 4, 5, 5)
    layer = RandomNorm2d(norm).train()
    with torch.no_grad():
        layer.group.weight.fill_(2.0)
    torch.testing.assert_close(with_choice(layer, False)(x), 2 * nn.functional.instance_norm(x))
    torch.testing.assert_close(with_choice(layer, True)(x), nn.functional.batch_norm(x, None, None, training=True))


def test_both_norms_have_the_type_of_the_network() -> None:
    net = RandomNorms().wrap(models.build("resnet18").double())
    assert net(torch.rand(2, 3, 32, 32, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("batch", [True, False])
def test_activations_keep_their_type_under_autocast(batch: bool) -> None:
    layer, x = with_choice(RandomNorm2d(nn.BatchNorm2d(4)).eval(), batch), torch.randn(8, 4, 5, 5).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_running_statistics_move_only_where_batchnorm_is_chosen() -> None:
    layer, x = RandomNorm2d(nn.BatchNorm2d(4)).train(), 3 + torch.randn(8, 4, 5, 5)
    with_choice(layer, False)(x)
    assert torch.equal(layer.batch.running_mean, torch.zeros(4))
    with_choice(layer, True)(x)
    torch.testing.assert_close(layer.batch.running_mean, 0.1 * x.mean((0, 2, 3)))


def test_a_batchnorm_without_a_momentum_is_refused() -> None:
    with pytest.raises(ArgumentError, match="momentum.*set it"):  # its running statistics would never move
        RandomNorms().wrap(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, momentum=None)))
    RandomNorm2d(nn.BatchNorm2d(2, momentum=None, track_running_stats=False))


def test_each_norm_is_chosen_half_of_the_time() -> None:
    layer = RandomNorm2d(nn.BatchNorm2d(1))
    chosen = []
    for seed in range(400):
        layer.resample(seed)
        chosen.append(layer.use_batch.item())
    assert abs(sum(chosen) - 200) < 5 * 10  # five standard deviations


def test_the_twenty_layers_choose_independently() -> None:
    model = RandomNorms().wrap(models.build("resnet18"))
    layers = [part for part in model.modules() if isinstance(part, RandomNorm2d)]
    chosen = torch.empty(400, len(layers))
    for seed in range(400):
        resample(model, seed)
        chosen[seed] = torch.stack([layer.use_batch for layer in layers])
    assert len(layers) == 20
    assert (torch.corrcoef(chosen.T) - torch.eye(20)).abs().max() < 5 / 400**0.5
