import pytest
import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.gradient import input_gradient
from advbnn.attacks.losses import Objective
from advbnn.attacks.threat import Threat
from advbnn.evaluation.attackable import Attackable, attackable
from cheats import Exploding, Rounded, Softened


@pytest.fixture(scope="module")
def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()


X, Y = torch.rand(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])


def gradient(network: object) -> Tensor:
    return input_gradient(network, X, Y, Objective()).gradient


def test_a_sound_network_is_what_it_was(net: nn.Module) -> None:
    model = attackable(net, X)
    assert not model.returns_probabilities
    assert torch.equal(model(X), net(X))
    assert torch.equal(gradient(model), gradient(net))
    assert list(model.parameters()) == list(net.parameters())


def test_probabilities_become_logits_that_mean_the_same(net: nn.Module) -> None:
    model = attackable(Softened(net), X)
    assert model.returns_probabilities
    assert torch.allclose(model(X), net(X).log_softmax(1), atol=1e-6)
    assert torch.allclose(gradient(model), gradient(net), atol=1e-6)
    certain = Attackable(nn.Identity(), returns_probabilities=True)
    assert certain(torch.tensor([[1.0, 0.0]])).isfinite().all()


def test_logits_that_sum_to_one_are_no_probabilities() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([3.0, -1.0, -1.0]).expand(len(x), 3)

    assert not attackable(Centred(), X).returns_probabilities


def test_a_missing_gradient_is_zero(net: nn.Module) -> None:
    model = attackable(Rounded(net), X)
    assert torch.equal(model(X), net((7 * X).round() / 7))
    assert (gradient(model) == 0).all()
    assert (gradient(model.logits) == 0).all()


def test_an_infinite_gradient_is_zero_for_attacks_alone(net: nn.Module) -> None:
    model = attackable(Exploding(net), X)
    assert (gradient(model) == 0).all()
    assert not gradient(model.logits).isfinite().any()
    with pytest.raises(ValueError, match="NaN or infinite"):
        PGD(Threat(eps=0.1), steps=1)(Exploding(net), X, Y)


def test_looking_at_it_leaves_the_network_alone() -> None:
    class Moody(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert not self.training
            return x + torch.rand(())

    model, state = Moody().train(), torch.get_rng_state()
    assert attackable(model, X).training
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
