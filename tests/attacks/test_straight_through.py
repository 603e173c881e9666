"""Straight-through gradients: hard values, soft gradients, the same random numbers."""

import pytest
import torch
from torch import nn

from advbnn.attacks import APGD, BPDA, PGD
from advbnn.attacks.base import GradientMaskingWarning
from advbnn.attacks.gradient import input_gradient
from advbnn.attacks.losses import Objective
from advbnn.attacks.straight_through import straight_through, with_gradient_of
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.sample_bank import SampleBank
from advbnn.fast.acceleration import Accelerated
from advbnn.randomness import seeded

LINF = Threat("linf", 0.15)


class Rounding(nn.Module):
    """Rounds to 16 levels."""

    def forward(self, x):
        return (15 * x).round() / 15


class OpenRounding(Rounding):
    """The same, and says what its gradient should be."""

    def straight_through(self, x):
        return x


class Winner(nn.Module):
    """Of every two units one passes, chosen by noisy competition: a mask that is constant almost everywhere."""

    def noisy(self, x):
        noise = -torch.empty(x.shape, dtype=x.dtype).exponential_().log()
        return (x + 0.1 * noise).unflatten(1, (-1, 2))

    def forward(self, x):
        mask = nn.functional.one_hot(self.noisy(x).argmax(2), 2)
        return (x.unflatten(1, (-1, 2)) * mask).sign().flatten(1)

    def straight_through(self, x):
        return (x.unflatten(1, (-1, 2)) * (self.noisy(x) / 0.5).softmax(2)).tanh().flatten(1)


def task(part, unit=None):
    """A network with this part in front and this unit inside, and inputs with the labels that it gives them."""
    torch.manual_seed(0)
    net = nn.Sequential(part, nn.Linear(12, 16), unit or nn.Tanh(), nn.Linear(16, 3)).eval()
    x = torch.rand(60, 12, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():  # centred, so that all classes occur
        net[1].bias -= net[1](x).mean(0)
        net[3].bias -= torch.stack([net(x) for _ in range(20)]).mean((0, 1))
        y = torch.stack([net(x).softmax(1) for _ in range(50)]).mean(0).argmax(1)
    return net, x, y


def broken(model, x, y):
    with seeded(3), torch.no_grad():
        return (model(x).argmax(1) != y).sum().item()


@pytest.mark.parametrize("attack", [PGD(LINF, random_start=False), APGD(LINF, steps=20)], ids=["pgd", "apgd"])
def test_a_rounding_defence_falls_to_the_gradient_that_it_offers(attack):
    hidden, x, y = task(Rounding())
    with pytest.warns(GradientMaskingWarning):
        by_its_gradient = attack(hidden, x, y, seed=0)
    open_, *_ = task(OpenRounding())
    by_straight_through = attack(open_, x, y, seed=0)
    assert broken(hidden, by_straight_through, y) >= broken(hidden, by_its_gradient, y) + 20


def test_values_stay_hard_and_gradients_are_soft():
    net, x, y = task(OpenRounding())
    plain = nn.Sequential(*net[1:])
    with straight_through(net):
        found = input_gradient(net, x, y, Objective())
        assert torch.equal(net(x), plain(net[0](x)))
    at = net[0](x)
    torch.testing.assert_close(found.gradient, input_gradient(plain, at, y, Objective()).gradient)
    torch.testing.assert_close(found.prediction, plain(at).detach())
    assert not input_gradient(net, x, y, Objective()).gradient.any()  # outside of the block
    hard, soft = torch.tensor([1.0]), torch.tensor([0.3], requires_grad=True)
    assert with_gradient_of(2 * soft, hard).item() == 1.0
    assert torch.autograd.grad(with_gradient_of(2 * soft, hard), soft)[0].item() == 2


@pytest.mark.parametrize("how", ["straight_through", "bpda"])
def test_parts_that_are_called_by_keyword_are_found_too(how):
    class ByKeyword(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net[1:](self.net[0](x=x))

    net, x, y = task(OpenRounding() if how == "straight_through" else Rounding())
    model = ByKeyword(net)
    attack = PGD(LINF, random_start=False)
    through = attack if how == "straight_through" else BPDA(attack, backward=lambda z: z, of=net[0])
    expected, *_ = task(OpenRounding())
    torch.testing.assert_close(through(model, x, y, seed=0), attack(expected, x, y, seed=0))


def test_a_noisy_mask_falls_and_its_soft_form_has_the_noise_of_the_forward_pass():
    net, x, y = task(nn.Identity(), Winner())

    def survivors(model, attack):
        found = attack(model, x, y, seed=0)
        with seeded(1), torch.no_grad():
            return (torch.stack([net(found).softmax(1) for _ in range(50)]).mean(0).argmax(1) == y).sum().item()

    attack = PGD(Threat("linf", 0.3), steps=30, eot=5)
    hard_only = nn.Sequential(*net)
    hard_only[2] = HardOnly(net[2])
    with pytest.warns(GradientMaskingWarning):
        before = survivors(hard_only, attack)
    assert survivors(net, attack) <= before - 15
    # the noise of the soft pass is that of the hard one, and later parts see the same stream as without a gradient
    with straight_through(net):
        with seeded(5):
            hard = net(x), torch.rand(())
        with seeded(5):
            soft = net(x.clone().requires_grad_()), torch.rand(())
    torch.testing.assert_close(hard, (soft[0].detach(), soft[1]))


class HardOnly(nn.Module):
    def __init__(self, part) -> None:
        super().__init__()
        self.part = [part]  # hidden from `modules`

    def forward(self, x):
        return self.part[0](x)


@pytest.mark.parametrize("kind", ["bayesian", "bank", "accelerated"])
def test_it_reaches_into_random_and_accelerated_networks(kind):
    net, x, y = task(OpenRounding())
    bank = SampleBank(net)
    bank.add()
    model = {
        "bayesian": bayesianize(net, init_std=1e-4),
        "bank": bank.eval(),
        "accelerated": Accelerated(net, "compile"),
    }
    attack = PGD(LINF, random_start=False, eot=2)
    expected = attack(net, x, y, seed=0)
    found = attack(model[kind], x, y, seed=0)
    assert (found - expected).abs().gt(1e-3).double().mean() < 0.2  # a little weight noise flips a few signs
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model[kind].modules())
