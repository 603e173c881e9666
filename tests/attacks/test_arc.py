"""ARC against randomized ensembles whose worst case is known."""

import math

import pytest
import torch
from torch import nn

from advbnn.attacks import ARC, PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.modes import Modes


def linear(normal, margin, scale=1.0):
    """Class 1 is ahead of class 0 by scale * (normal . (x - 1/2) - margin)."""
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(scale * torch.tensor([[0.0, 0.0], list(normal)]))
        net.bias.copy_(scale * torch.tensor([0.0, -margin - 0.5 * sum(normal)]))
    return net.eval()


def expected_accuracy(model, x, y):
    return sum(member.weight * (member.net(x).argmax(1) == y).double() for member in model.members())


X, Y = torch.full((1, 2), 0.5), torch.tensor([0])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_fools_two_members_that_a_mean_loss_cannot_fool_together(norm):
    # each errs beyond its own line, and both do between them, at (0, 0.1); the second is so confident that the
    # gradient of its cross-entropy vanishes, and PGD follows the first one alone
    threat, margin = Threat(norm, 0.1), 0.03
    model = Modes([linear((1, 0.5), margin), linear((-1, 0.5), margin, scale=1e4)])
    by_pgd = PGD(threat, steps=40, eot=2, random_start=False)(model, X, Y, seed=0)
    assert expected_accuracy(model, by_pgd, Y) == 0.5
    assert expected_accuracy(model, ARC(threat)(model, X, Y, seed=0), Y) == 0
    if norm == "linf":  # one step is enough, as the formula for beta says
        assert expected_accuracy(model, ARC(threat, steps=1)(model, X, Y, seed=0), Y) == 0


def test_where_no_point_fools_both_it_fools_the_likelier_one():
    # opposite gradients: at equal losses they cancel, so that the gradient of the mean loss is zero at x
    model = Modes([linear((1, 0), 0.05), linear((-1, 0), 0.05)], [0.4, 0.6])
    found = ARC(Threat("linf", 0.1))(model, X, Y, seed=0)
    assert expected_accuracy(model, found, Y).item() == pytest.approx(0.4)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_single_linear_network_falls_at_its_analytic_distance(norm):
    normal, margin = (3.0, -1.0), 0.2
    distance = margin / (4.0 if norm == "linf" else math.sqrt(10))
    net = linear(normal, margin)
    for eps, accuracy in ((0.99 * distance, 1), (1.05 * distance, 0)):
        found = ARC(Threat(norm, eps))(net, X, Y, seed=0)
        assert (net(found).argmax(1) == Y).item() == accuracy


def test_members_of_another_random_network_are_samples_that_stay():
    class Shifted(nn.Module):
        """A decision line at a random place, drawn at every call."""

        def __init__(self) -> None:
            super().__init__()
            self.net, self.seen = linear((1, 0), 0.05), []

        def forward(self, x):
            shift = 0.03 * torch.randn(())
            self.seen.append(shift.item())
            return self.net(x + shift)

    model = Shifted()
    found = ARC(Threat("linf", 0.2), members=5)(model, X, Y, seed=0)
    assert len(set(model.seen)) <= 5 + 2  # two of the test whether it is random
    with torch.no_grad():
        assert all((model(found).argmax(1) != Y).item() for _ in range(50))


def test_fewer_classes_cost_fewer_backward_passes_and_find_the_same_where_two_compete():
    torch.manual_seed(0)
    net, x = nn.Linear(3, 6), torch.rand(20, 3)
    y, threat = net(x).argmax(1), Threat("l2", 0.5)
    lite, full = (ARC(threat, steps=4, classes=classes)(net, x, y, seed=0) for classes in (3, None))
    broken = [(net(found).argmax(1) != y).sum().item() for found in (lite, full)]
    assert min(broken) > 0 and abs(broken[0] - broken[1]) <= 2


def test_other_norms_and_settings_are_refused():
    with pytest.raises(ValueError, match="'l1'; use PGD"):
        ARC(Threat("l1", 1.0))
    with pytest.raises(ValueError, match="step_size .*eps is infinite"):
        ARC(Threat("l2", math.inf))
    with pytest.raises(ValueError, match="members .*0"):
        ARC(Threat("l2", 1.0), members=0)
