"""HopSkipJump: the analytic distance of a linear classifier, from labels alone."""

import math

import pytest
import torch
from torch import nn

from advbnn.attacks import PGD, HopSkipJump
from advbnn.attacks.base import GradientMaskingWarning
from advbnn.attacks.threat import Threat
from cheats import Rounded

SIZE = 20


def linear(seed=0):
    """Two classes, and inputs of class 0 near the middle of the box."""
    generator = torch.Generator().manual_seed(seed)
    net = nn.Linear(SIZE, 2)
    normal = torch.randn(SIZE, generator=generator)
    with torch.no_grad():
        net.weight.copy_(torch.stack([torch.zeros(SIZE), normal]))
        net.bias.copy_(torch.tensor([0.0, -0.5 * normal.sum().item() - 0.3]))
    x = 0.5 + 0.02 * torch.randn(8, SIZE, generator=generator)
    return net, x, torch.zeros(8, dtype=torch.int64)


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_it_approaches_the_analytic_distance_with_more_queries(norm, dual):
    net, x, y = linear()
    slope = net.weight[1] - net.weight[0]
    exact = ((net(x)[:, 0] - net(x)[:, 1]) / torch.linalg.vector_norm(slope, dual)).detach().double()
    threat = Threat(norm, math.inf)
    means = []
    for queries in (200, 4000):
        result = HopSkipJump(threat, queries=queries, directions=30).run(net, x, y, seed=0)
        distance = threat.distance(result.x_adv, x)
        assert (net(result.x_adv).argmax(1) != y).all() and (distance >= exact - 1e-6).all()
        assert result.queries.max() <= queries
        means.append((distance / exact).mean().item())
    assert means[1] < means[0] and means[1] < 1.5


@pytest.mark.parametrize("queries", [1, 5, 12, 30, 60])
def test_a_small_budget_is_kept(queries):
    net, x, y = linear()
    for eps in (0.05, 0.3, math.inf):
        assert HopSkipJump(Threat("l2", eps), queries=queries).run(net, x, y, seed=0).queries.max() <= queries


def test_only_labels_are_seen():
    class Labels(nn.Module):
        """Logits that say nothing but the label, and have no gradient."""

        def __init__(self, net) -> None:
            super().__init__()
            self.net = net

        def forward(self, x):
            return nn.functional.one_hot(self.net(x.detach()).argmax(1), 2).float() * 3

    net, x, y = linear()
    attack = HopSkipJump(Threat("l2", 0.3), queries=500, directions=30)
    torch.testing.assert_close(attack(net, x, y, seed=0), attack(Labels(net), x, y, seed=0))


def test_a_network_that_masks_its_gradient_falls():
    net, x, _ = linear()
    masked, threat = Rounded(net), Threat("linf", 0.1)
    y = masked(x).argmax(1)
    with pytest.warns(GradientMaskingWarning):
        by_gradient = PGD(threat, steps=20)(AddsZero(masked), x, y, seed=0)
    by_labels = HopSkipJump(threat, queries=1500, directions=30)(masked, x, y, seed=0)
    broken = [(masked(found).argmax(1) != y).sum().item() for found in (by_gradient, by_labels)]
    assert broken[0] <= 4 and broken[1] >= 7


class AddsZero(nn.Module):
    """A network without a gradient, with one that is zero."""

    def __init__(self, net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x) + 0 * x.sum(1, keepdim=True)


def test_the_votes_of_a_random_network_decide():
    class Noisy(nn.Module):
        def __init__(self, net) -> None:
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x + 0.05 * torch.randn(SIZE))

    net, x, y = linear()
    found = HopSkipJump(Threat("l2", 0.4), queries=800, directions=30)(Noisy(net), x, y, seed=0)
    with torch.no_grad():
        fooled = torch.stack([Noisy(net)(found).argmax(1) != y for _ in range(200)]).double().mean(0)
    assert (fooled > 0.5).sum() >= 7


def test_a_misclassified_example_stays_and_costs_one_query():
    net, x, y = linear()
    result = HopSkipJump(Threat("l2", 0.4)).run(net, x, 1 - y, seed=0)
    assert torch.equal(result.x_adv, x) and result.queries.tolist() == [1] * 8


def test_it_needs_a_box_and_one_of_two_norms():
    with pytest.raises(ValueError, match="'l1'; use Square"):
        HopSkipJump(Threat("l1", 1.0))
    with pytest.raises(ValueError, match="box.* finite"):
        HopSkipJump(Threat("l2", 1.0, (-math.inf, math.inf)))
