import pytest
import torch

from advbnn.defenses.lwta import StochasticLWTA
from advbnn.randomness import seeded


def test_the_winner_follows_the_softmax_of_its_block() -> None:
    x = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1).expand(4000, -1, -1, -1)
    with seeded(0):
        out = StochasticLWTA().eval()(x)[:, 1, 0, 0]
    # the Gumbel maximum: the second wins with probability e / (1 + e)
    won = (out > 0.5).double().mean().item()
    truth = 1 / (1 + torch.exp(torch.tensor(-1.0)).item())
    assert abs(won - truth) < 5 * (truth * (1 - truth) / 4000) ** 0.5


def test_the_soft_form_has_gradients_where_the_sharp_one_has_none() -> None:
    x = torch.randn(4, 6, 3, 3, requires_grad=True)
    layer = StochasticLWTA().eval()

    def loser_gradient(function: object) -> float:
        with seeded(0):
            out = function(x)
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        return (gradient.abs() > 1e-3).double().mean().item()

    assert loser_gradient(layer.straight_through) > 1.5 * loser_gradient(layer)


def test_blocks_must_fit() -> None:
    with pytest.raises(ValueError, match="block"):
        StochasticLWTA(block=2)(torch.rand(1, 3, 2, 2))
