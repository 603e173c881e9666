import pytest
import torch
from torch import nn
from torch.nn import functional

from advbnn.defenses.rpf import RandomProjection, RandomProjectionConv2d


def test_learned_filters_come_first_and_are_standardised() -> None:
    conv = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    layer, x = RandomProjectionConv2d(conv), torch.rand(2, 3, 8, 8)
    outputs = layer(x)
    assert (len(layer.weight), len(layer.random)) == (16, 48)
    own = conv.weight[:16] / ((conv.weight[:16].flatten(1).std(1).view(-1, 1, 1, 1) + 1e-5) * 3)
    torch.testing.assert_close(outputs[:, :16], functional.conv2d(x, own, padding=1))
    torch.testing.assert_close(outputs[:, 16:], functional.conv2d(x, layer.random, padding=1))


def test_random_filters_have_the_moments_of_the_source_and_no_gradient() -> None:
    layer = RandomProjectionConv2d(nn.Conv2d(3, 64, 3))
    draws = []
    for seed in range(200):
        layer.resample(seed)
        draws.append(layer.random.clone())
    numbers = torch.stack(draws)
    n = numbers.numel()
    assert abs(numbers.mean().item()) < 5 / 3 / n**0.5
    assert abs(3 * numbers.std().item() - 1) < 5 / (2 * n) ** 0.5
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]


def test_nothing_to_learn_or_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="learned"):
        RandomProjection(learned=1.0)
    with pytest.raises(ValueError, match="learned"):
        RandomProjectionConv2d(nn.Conv2d(3, 2, 3), learned=0.1)
