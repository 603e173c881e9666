"""Borrowed models come back as they were lent."""

import pytest
from torch import nn

from advbnn.modules import evaluating, training, without_parameter_gradients


def test_every_module_gets_its_own_mode_back() -> None:
    net = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)).train()
    net[1].eval()
    with pytest.raises(KeyError), evaluating(net):
        assert not any(module.training for module in net.modules())
        raise KeyError
    assert [module.training for module in net.modules()] == [True, True, False]


def test_training_ends_with_the_block() -> None:
    net = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)).eval()
    net[0].train()
    with pytest.raises(KeyError), training(net):
        assert all(module.training for module in net.modules())
        raise KeyError
    assert [module.training for module in net.modules()] == [False, True, False]


def test_a_model_in_training_mode_keeps_what_is_frozen() -> None:
    net = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)).train()
    net[1].eval()
    with training(net):
        assert [module.training for module in net.modules()] == [True, True, False]


def test_every_parameter_gets_its_own_flag_back() -> None:
    net = nn.Linear(2, 2)
    net.bias.requires_grad_(False)
    with pytest.raises(KeyError), without_parameter_gradients(net):
        assert not any(p.requires_grad for p in net.parameters())
        raise KeyError
    assert net.weight.requires_grad
    assert not net.bias.requires_grad
