"""FAB: analytic distances of linear classifiers, its projection, and masked gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from advbnn.attacks import FAB
from advbnn.attacks.fab import to_hyperplane
from advbnn.attacks.threat import Threat

ORDERS = {"linf": math.inf, "l2": 2, "l1": 1}
DUALS = {"linf": 1, "l2": 2, "l1": math.inf}


@pytest.mark.parametrize("norm", ORDERS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 6), change=st.floats(-3, 3))
def test_the_step_onto_a_plane_is_the_shortest_within_the_box(norm, seed, size, change):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, size, generator=generator, dtype=torch.float64)
    slope = torch.randn(1, size, generator=generator, dtype=torch.float64)
    slope[0, 0] = 0.0 if seed % 3 == 0 and size > 1 else slope[0, 0]
    step = to_hyperplane(x, slope, torch.tensor([change], dtype=torch.float64), norm, (0.0, 1.0))
    assert ((x + step >= -1e-12) & (x + step <= 1 + 1e-12)).all()
    most = torch.where(slope * change > 0, (1 - x) * slope.abs(), x * slope.abs()).sum()
    reached = (slope * step).sum() * math.copysign(1, change)
    torch.testing.assert_close(reached, most.clamp_max(abs(change)), atol=1e-9, rtol=0)
    if most < abs(change):
        return  # no point of the box reaches the plane
    length = torch.linalg.vector_norm(step, ORDERS[norm])
    # no other point of the box is nearer: coordinate-wise clipping of any direction gives the best of its kind
    others = torch.rand(4000, size, generator=generator, dtype=torch.float64)
    gain = ((others - x) * slope).sum(1) * math.copysign(1, change)
    enough = others[gain >= abs(change)]
    if len(enough):
        assert length <= torch.linalg.vector_norm(enough - x, ORDERS[norm], dim=1).min() + 1e-9


def linear():
    """A linear classifier that is undecided in the middle of the box, and inputs around it."""
    torch.manual_seed(0)
    net = nn.Linear(5, 4).double()
    with torch.no_grad():
        net.bias.copy_(-0.5 * net.weight.sum(1))
    x = 0.5 + 0.05 * torch.randn(30, 5, dtype=torch.float64)
    return net, x, net(x).argmax(1)


@pytest.mark.parametrize("norm", ORDERS)
def test_on_a_linear_classifier_it_finds_the_analytic_distance(norm):
    net, x, y = linear()
    logits = net(x).detach()
    gaps = logits.gather(1, y[:, None]) - logits
    slopes = torch.linalg.vector_norm(net.weight[y][:, None] - net.weight[None], DUALS[norm], dim=2).detach()
    exact = (gaps / slopes).nan_to_num(math.inf).amin(1)
    assert exact.max() < 0.3  # so that the box does not matter
    found = FAB(Threat(norm, math.inf), steps=30)(net, x, y, seed=0)
    distance = Threat(norm, math.inf).distance(found, x)
    assert (net(found).argmax(1) != y).all() and (distance >= exact - 1e-9).all()
    assert (distance <= 1.06 * exact).all()  # the step overshoots by a twentieth


def test_the_scale_of_the_logits_does_not_matter():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double(), torch.rand(20, 4).double()
    y, threat = net(x).argmax(1), Threat("l2", 0.3)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, z):
            return 1e6 * self.net(z)

    plain, scaled = (FAB(threat, steps=20)(model, x, y, seed=0) for model in (net, Scaled()))
    torch.testing.assert_close(plain, scaled, atol=1e-6, rtol=0)
    assert (net(plain).argmax(1) != y).any()


def test_an_example_is_left_alone_once_it_is_broken_within_the_radius():
    net, x, y = linear()
    attack = FAB(Threat("linf", 0.5), steps=50)
    assert attack.run(net, x, y).queries.max() <= 1 + 2 * 2  # a gradient and a test in each of two steps
    run = attack.run(net, x, (y + 1) % 4)
    assert torch.equal(run.x_adv, x) and run.queries.tolist() == [1] * 30


def test_random_starts_need_a_radius():
    with pytest.raises(ValueError, match="restarts=2 .*finite eps"):
        FAB(Threat("l2", math.inf), restarts=2)
