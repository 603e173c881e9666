"""Adversarial weight perturbation: the ascent step, and that it is undone."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from advbnn.bayes.mean_field import bayesianize
from advbnn.defenses.defense import Defense
from advbnn.defenses.objective import RobustELBO
from advbnn.randomness import seeded
from advbnn.training.awp import perturbed
from advbnn.training.objective import RobustLoss
from advbnn.training.step import EagerStep
from quick import same


class Quadratic(nn.Module):
    """Half of sum_ij a_i (w_ij - c)^2, whose gradient is a_i (w_ij - c)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64))
        self.curvature = torch.tensor([[1.0], [2.0]], dtype=torch.float64)

    def forward(self) -> Tensor:
        return (self.curvature * (self.w - 1) ** 2).sum() / 2


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(8, 1, 6, 6, generator=generator), torch.randint(4, (8,), generator=generator)


def test_the_step_on_a_quadratic() -> None:
    """At w = (3, 4; 0, 0), of norm 5, the gradient is (2, 3; -2, -2), of norm sqrt(21)."""
    quadratic = Quadratic()
    start, rise = quadratic().item(), 0.1 * 5 / math.sqrt(21)
    with perturbed(quadratic, quadratic, rho=0.1):
        expected = torch.tensor([[3 + 2 * rise, 4 + 3 * rise], [-2 * rise, -2 * rise]], dtype=torch.float64)
        torch.testing.assert_close(quadratic.w.detach(), expected)
        assert quadratic().item() > start
        quadratic().backward()
    torch.testing.assert_close(quadratic.w.grad, quadratic.curvature * (expected - 1))
    assert quadratic.w.tolist() == [[3.0, 4.0], [0.0, 0.0]]


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_an_update_is_that_of_a_proxy_that_descends_the_negative_loss(decay: float) -> None:
    """The authors' procedure: the step of a copy gives the direction, and the optimizer runs before the weights come
    back. Weight decay of the perturbation is all that differs."""
    rho, lr, (x, y) = 0.01, 0.1, images()
    net, reference = small_net().train(), small_net().train()
    proxy = copy.deepcopy(reference)
    (-functional.cross_entropy(proxy(x), y)).backward()
    torch.optim.SGD(proxy.parameters(), lr=0.01).step()
    shifts = {}
    for name, weight in reference.named_parameters():
        if weight.dim() > 1:
            moved = proxy.get_parameter(name).detach() - weight.detach()
            shifts[name] = rho * moved * weight.detach().norm() / moved.norm()
    optimizer = torch.optim.SGD(reference.parameters(), lr=lr, momentum=0.9, weight_decay=decay)
    with torch.no_grad():
        for name, shift in shifts.items():
            reference.get_parameter(name).add_(shift)
    functional.cross_entropy(reference(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for name, shift in shifts.items():
            reference.get_parameter(name).sub_(shift - lr * decay * shift)  # the decay of the shift is given back

    loss = RobustLoss(net, RobustELBO(), 8)
    ours = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=decay)
    EagerStep(loss, ours, Defense(awp=rho))(x, y, 0)
    for name, value in reference.state_dict().items():  # statistics too: of the perturbed weights, once
        torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-4, atol=2e-6)


@given(seed=st.integers(0, 10**6), rho=st.floats(1e-4, 0.1))
@settings(max_examples=30, deadline=None)
def test_each_layer_moves_by_rho_of_its_norm_and_comes_back_bit_for_bit(seed: int, rho: float) -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(48, 4))  # linear: no gradient vanishes
    with seeded(seed), torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn_like(p) * 10 ** torch.empty(()).uniform_(-3, 3))
    before = copy.deepcopy(net)
    x, _ = images()
    with perturbed(net, lambda: net(x).square().mean(), rho=rho):
        for name, p in net.named_parameters():
            if p.dim() < 2:
                assert torch.equal(p, before.get_parameter(name))
            else:
                moved = (p - before.get_parameter(name)).norm() / before.get_parameter(name).norm()
                assert moved.item() == pytest.approx(rho, rel=1e-2)
    assert same(net, before)


def test_the_ascent_step_changes_neither_gradients_nor_statistics() -> None:
    net, (x, y) = small_net().train(), images()
    functional.cross_entropy(net(x), y).backward()
    net[4].bias.grad = None
    before, grads = (
        copy.deepcopy(net),
        {n: None if p.grad is None else p.grad.clone() for n, p in net.named_parameters()},
    )
    with perturbed(net, lambda: functional.cross_entropy(net(x), y)):
        for name, p in net.named_parameters():
            assert (p.grad is None) if grads[name] is None else torch.equal(p.grad, grads[name])
        assert all(torch.equal(b, before.get_buffer(name)) for name, b in net.named_buffers())
    assert same(net, before)


def test_weights_come_back_when_the_block_or_the_loss_raises() -> None:
    net, (x, y) = small_net(), images()
    before = copy.deepcopy(net)
    with pytest.raises(KeyError), perturbed(net, lambda: functional.cross_entropy(net(x), y), rho=0.1):
        raise KeyError("inside")
    assert same(net, before)

    def failing() -> Tensor:
        net(x)  # moves the statistics of BatchNorm
        raise KeyError("in the loss")

    with pytest.raises(KeyError), perturbed(net, failing):
        pass
    assert same(net, before)


def test_the_means_of_a_bayesian_network_move_and_the_standard_deviations_do_not() -> None:
    bnn, (x, y) = bayesianize(small_net().eval()), images()
    before = copy.deepcopy(bnn)
    eps = bnn.noise(seed=3)[0]

    def loss() -> Tensor:
        return functional.cross_entropy(bnn.run(bnn.sample(eps), x), y)

    begin, moving = loss().item(), [bnn.net[0].weight, bnn.net[4].weight]
    gradients = torch.autograd.grad(loss(), moving)
    with perturbed(bnn, loss, rho=0.001):
        assert same(bnn.log_std, before.log_std)
        moved = {name for name, mu, _ in bnn.posterior() if not torch.equal(mu, before.net.get_parameter(name))}
        assert moved == {"0.weight", "4.weight"}
        predicted = 0.001 * sum(w.norm() * g.norm() for w, g in zip(moving, gradients, strict=True)).item()
        assert loss().item() - begin == pytest.approx(predicted, rel=0.1)  # the next order is of size rho
        loss().backward()
    assert same(bnn, before)
    assert all(s.grad is not None for s in bnn.log_std.parameters())


def test_weights_that_are_frozen_unused_or_flat_stay() -> None:
    net = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)])
    net[0].requires_grad_(False)
    before = copy.deepcopy(net)
    x = torch.rand(2, 3)

    def loss() -> Tensor:  # net[1] is not used, and the gradient of net[2] vanishes
        return net[3](net[0](x)).square().sum() + 0 * net[2](x).sum()

    with perturbed(net, loss, rho=0.1):
        changed = [name for name, p in net.named_parameters() if not torch.equal(p, before.get_parameter(name))]
        assert changed == ["3.weight"]
        assert all(p.isfinite().all() for p in net.parameters())


def test_a_network_without_weights_to_perturb_is_refused() -> None:
    net = small_net().requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to perturb"), perturbed(net, lambda: torch.zeros(())):
        pass
