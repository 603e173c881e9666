"""Biases that BatchNorm cancels get a gradient of exactly zero in an update."""

import copy

import torch
from torch import nn
from torch.nn import functional

from advbnn.bayes.mean_field import bayesianize
from advbnn.training.hidden_biases import HiddenBiases, hidden_biases


def backward(model: nn.Module, size: int = 8) -> None:
    torch.manual_seed(0)
    outputs = model(torch.rand(32, 1, size, size)).flatten(1)
    functional.cross_entropy(outputs, torch.randint(3, (32,))).backward()


def test_a_hidden_bias_has_gradient_zero_where_rounding_gives_another() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))
    assert hidden_biases(net) == [("0.bias", "1")]
    bnn = bayesianize(net)
    for model in (bnn, nn.Sequential(nn.Identity(), copy.deepcopy(bnn))):
        with HiddenBiases(model).without_gradients():
            backward(model)
        grads = {name.removeprefix("1.net.").removeprefix("net."): p.grad for name, p in model.named_parameters()}
        # zero instead of none, which an optimizer would skip, weight decay included
        zero = {name for name, grad in grads.items() if not grad.any()}
        assert {name.rpartition("log_std.")[2] for name in zero} == {"0.bias"} and len(zero) == 2
    bnn.zero_grad()
    backward(bnn)
    assert net[0].bias.grad.abs().max() < 1e-5  # rounding, which Adam would scale up to full steps


def test_a_tied_bias_keeps_the_gradient_of_its_other_place() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))
    net[2].bias = net[0].bias
    bnn = bayesianize(net)
    with HiddenBiases(bnn).without_gradients():
        bnn(torch.rand(2, 1, 6, 6)).sum().backward()
    torch.testing.assert_close(net[2].bias.grad, torch.full((4,), 8.0))


def test_a_bias_is_not_hidden_from_running_statistics() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    bnn = bayesianize(net)
    net[1].eval()
    with HiddenBiases(bnn).without_gradients():
        bnn(torch.rand(2, 1, 5, 5)).sum().backward()
    assert net[0].bias.grad.abs().max() > 0.1
