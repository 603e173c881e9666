from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

from advbnn import models
from advbnn.defenses.dcs import RandomTaps, RandomTapsConv2d
from advbnn.models.resnet import Residual


def test_only_the_drawn_taps_are_used() -> None:
    layer, x = RandomTapsConv2d(nn.Conv2d(2, 3, 3, padding=1)), torch.rand(2, 2, 8, 8)
    rows, columns = layer.mask.nonzero().unbind(1)
    padded = functional.pad(x, (2, 2, 2, 2))
    expected = layer.conv.bias.view(1, -1, 1, 1).expand(2, 3, 8, 8)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        shifted = padded[:, :, row : row + 8, column : column + 8]
        expected = expected + torch.einsum("oi,nihw->nohw", layer.conv.weight[:, :, row, column], shifted)
    torch.testing.assert_close(layer(x), expected)


def test_pairs_of_taps_are_uniform() -> None:
    layer, pairs = RandomTapsConv2d(nn.Conv2d(1, 1, 3), size=3), Counter()
    for seed in range(720):
        layer.resample(seed)
        pairs[tuple(layer.mask.flatten().nonzero().flatten().tolist())] += 1
    assert len(pairs) == 36  # 3x3 places, two of them
    statistic = sum((count - 20) ** 2 / 20 for count in pairs.values())
    assert statistic < 35 + 5 * 70**0.5  # chi squared with 35 degrees of freedom


def test_the_update_of_training_draws_uniformly_among_the_taps_that_its_attack_has_not() -> None:
    layer, pairs = RandomTapsConv2d(nn.Conv2d(1, 1, 3), size=3), Counter()
    for seed in range(420):
        layer.resample(0)
        attacked = layer.mask.clone()
        layer.resample_for_update(seed)
        assert layer.mask.sum() == 2 and (layer.mask * attacked).sum() == 0
        pairs[tuple(layer.mask.flatten().nonzero().flatten().tolist())] += 1
    assert len(pairs) == 21  # two of the other seven places
    statistic = sum((count - 20) ** 2 / 20 for count in pairs.values())
    assert statistic < 20 + 5 * 40**0.5  # chi squared with 20 degrees of freedom


def test_the_layer_is_the_first_of_the_first_block() -> None:
    model = RandomTaps().wrap(models.build("resnet18"))
    (name,) = (name for name, part in model.named_modules() if isinstance(part, RandomTapsConv2d))
    block = model.get_submodule(name.rpartition(".")[0])
    assert block.conv1 is model.get_submodule(name) and block.conv1.conv.weight.shape == (64, 64, 5, 5)
    first = next(part for part in model.modules() if isinstance(part, Residual))
    assert block is first


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="size"):
        RandomTaps(size=4)
    with pytest.raises(ValueError, match="taps"):
        RandomTaps(taps=26)
