import pytest
import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.gradient import input_gradient
from advbnn.attacks.losses import Objective
from advbnn.attacks.threat import Threat
from advbnn.bayes.sample_bank import SampleBank
from advbnn.data import to_float
from advbnn.evaluation.attackable import Attackable, attackable
from advbnn.randomness import seeded
from cheats import Exploding, Rounded, Softened, Wrapped
from trained_nets import digits, net

X, Y = torch.rand(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])
with seeded(0):
    NET = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()


def gradient(network: object) -> Tensor:
    return input_gradient(network, X, Y, Objective()).gradient


def test_a_sound_network_is_unchanged() -> None:
    model = attackable(NET, X)
    assert not model.returns_probabilities
    assert torch.equal(model(X), NET(X))
    assert torch.equal(gradient(model), gradient(NET))
    assert list(model.parameters()) == list(NET.parameters())


def test_probabilities_become_their_logarithms() -> None:
    model = attackable(Softened(NET), X)
    assert model.returns_probabilities
    torch.testing.assert_close(model(X), NET(X).log_softmax(1))
    torch.testing.assert_close(gradient(model), gradient(NET))
    certain = Attackable(nn.Identity(), returns_probabilities=True)
    assert certain(torch.tensor([[1.0, 0.0]])).isfinite().all()


def test_a_missing_gradient_is_zero() -> None:
    model = attackable(Rounded(NET), X)
    assert torch.equal(model(X), NET((7 * X).round() / 7))
    assert (gradient(model) == 0).all()
    assert (gradient(model.logits) == 0).all()


def test_an_infinite_gradient_is_zero_in_attacks_only() -> None:
    model = attackable(Exploding(NET), X)
    assert (gradient(model) == 0).all()
    assert not gradient(model.logits).isfinite().any()
    with pytest.raises(ValueError, match="NaN or infinite"):
        PGD(Threat(eps=0.1), steps=1)(Exploding(NET), X, Y)


def test_stored_samples_in_training_mode_keep_their_statistics() -> None:
    bank = SampleBank(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    bank.add()
    before = [buffer.clone() for buffer in bank.buffers()]
    attackable(bank.train(), X)
    assert all(map(torch.equal, before, bank.buffers()))


def test_the_first_pass_is_in_evaluation_mode_and_restores_the_state() -> None:
    class Strict(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert not self.training
            return x + torch.rand(())

    model, state = Strict().train(), torch.get_rng_state()
    assert attackable(model, X).training and model.training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
def test_the_size_of_the_logits_makes_no_difference_to_a_rescaled_network(scale: float) -> None:
    class Sized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return scale * NET(x)

    first, other = (attackable(Sized(), X).rescaled for _ in range(2))
    assert first is not None and other is not None
    lead = first(X).topk(2).values.diff().abs().median().item()
    assert lead == pytest.approx(5.0, rel=1e-3)
    torch.testing.assert_close(first(X) / lead, NET(X) / NET(X).topk(2).values.diff().abs().median())


def test_logits_of_a_usual_size_and_of_none_are_left_alone() -> None:
    for factor, constant in ((4.0, False), (1.0, True)):
        model = nn.Linear(4, 3).requires_grad_(False)
        model.weight.copy_(torch.zeros(3, 4) if constant else factor * torch.eye(3, 4))
        model.bias.zero_()
        assert attackable(model, X).rescaled is None


def test_small_logits_weaken_the_cross_entropy_unless_they_are_rescaled() -> None:
    class Dim(Wrapped):
        def forward(self, x: Tensor) -> Tensor:
            return 1e-4 * self.net(x)

    x, y, attack = to_float(digits().images), digits().labels, PGD(Threat("linf", 0.08), steps=10)
    dim = attackable(Dim(net()), x)
    plain, small, rescaled = (
        int((net()(attack(model, x, y, seed=0)).argmax(1) == y).sum()) for model in (net(), dim, dim.rescaled)
    )
    # of 120 images; an image or two may lie on a boundary
    assert abs(rescaled - plain) <= 3 < 10 < small - plain
