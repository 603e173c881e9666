import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from advbnn.defenses.pni import ParametricNoise, WeightNoise
from advbnn.randomness import seeded


@pytest.mark.parametrize(("sharing", "shape"), [("layer", (1,)), ("channel", (4, 1)), ("element", (4, 6))])
def test_noise_has_the_learned_scale(sharing: str, shape: tuple[int, ...]) -> None:
    weight = torch.randn(4, 6)
    noise = WeightNoise(weight, sharing, init=0.5)
    assert noise.alpha.shape == shape
    with torch.no_grad(), seeded(0):
        draws = torch.stack([noise(weight) - weight for _ in range(2000)])
    n, std = draws.numel(), 0.5 * weight.std()
    assert abs(draws.mean()) < 5 * std / n**0.5
    assert abs(draws.std() / std - 1) < 5 / (2 * n) ** 0.5


def test_the_scale_has_a_gradient_and_the_spread_of_the_weights_none() -> None:
    weight = torch.randn(4, 6, requires_grad=True)
    noise = WeightNoise(weight)
    with seeded(0):
        noise(weight).sum().backward()
    torch.testing.assert_close(weight.grad, torch.ones(4, 6))
    with seeded(0):
        expected = weight.std() * torch.randn(4, 6).sum()
    torch.testing.assert_close(noise.alpha.grad, expected.detach().view(1))


def test_every_convolution_and_the_classifier_are_noisy() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 4), nn.Linear(4, 2))
    noisy = ParametricNoise().wrap(net)
    assert [parametrize.is_parametrized(layer) for layer in noisy] == [True, False, False, True]


def test_a_pass_of_the_network_has_noise_on_each_weight_in_turn() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(2, 4))
    noisy, x = ParametricNoise(init=0.5, mean=0.4, std=0.2).wrap(net), torch.rand(3, 1, 3, 3)
    with torch.no_grad(), seeded(0):
        outputs = noisy(x)
    with torch.no_grad(), seeded(0):
        kernel, matrix = (
            layer.weight + 0.5 * layer.weight.std() * torch.randn_like(layer.weight) for layer in net[::2]
        )
        hidden = ((x - 0.4) / 0.2).flatten(1) @ kernel.flatten(1).T  # the kernel is as large as the image
        torch.testing.assert_close(outputs, hidden @ matrix.T + net[2].bias)
