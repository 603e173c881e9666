import math

import pytest
import torch
from torch import Tensor, nn

from advbnn.defenses.ig_bnn import Particles, information_gain, information_gain_loss


def test_the_mean_of_the_logits_of_different_particles() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    model, x = Particles(net, 3), torch.rand(5, 1, 2, 2)
    each = model.each(x)
    torch.testing.assert_close(model(x), each.mean(0))
    assert torch.equal(each[0], net(x)) and not torch.equal(each[1], each[2])


def test_information_gain_by_hand() -> None:
    agreeing = torch.tensor([2.0, 0.0]).log_softmax(0).expand(4, 1, 2)
    assert information_gain(agreeing).item() == pytest.approx(0.0, abs=1e-6)
    sure = torch.tensor([[[30.0, -30.0]], [[-30.0, 30.0]]])  # the mean of the logits is even: log 2 against 0
    assert information_gain(sure).item() == pytest.approx(math.log(2), rel=1e-5)


def test_the_loss_is_cross_entropy_plus_the_change_of_information_gain() -> None:
    class Shift(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.scale * x, -self.scale * x], 1)

    model = Particles(Shift(0.0), 2)
    model.particles[1].scale = 1.0
    x, x_adv, y = torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([0])

    def entropy(p: float) -> float:
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    def sigmoid(z: float) -> float:
        return 1 / (1 + math.exp(-z))

    likelihood = (math.log(2) - math.log(sigmoid(2.0))) / 2
    gain = entropy(sigmoid(1.0)) - (math.log(2) + entropy(sigmoid(2.0))) / 2
    expected = likelihood + 5 * abs(gain)
    assert information_gain_loss(model, x, x_adv, y).item() == pytest.approx(expected, rel=1e-5)
