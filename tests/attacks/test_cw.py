"""C&W against the exact distances of linear classifiers."""

import math

import pytest
import torch
from torch import nn

from advbnn import attacks
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.prediction import predict


def two_classes():
    """z_1 - z_0 = w (x - 1/2) + b: the nearest point of the other class lies at |z_1 - z_0| / |w|_dual."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Linear(10, 2).double()
    w = torch.randn(10, generator=generator, dtype=torch.float64)
    net.weight.data = torch.stack([-w / 2, w / 2])
    net.bias.data = torch.stack([w.sum() / 4, -w.sum() / 4])
    x = 0.5 + 0.2 * torch.rand(8, 10, generator=generator, dtype=torch.float64) - 0.1
    return net, w, x, net(x).argmax(1)


@pytest.mark.parametrize(("norm", "dual"), [("l2", 2), ("linf", 1)])
def test_it_finds_the_smallest_perturbation(norm, dual):
    net, w, x, y = two_classes()
    smallest = (net(x)[:, 1] - net(x)[:, 0]).abs() / w.norm(dual)
    threat = Threat(norm, math.inf)
    attack = attacks.CW(threat, steps=80, search_steps=10, learning_rate=0.01, first_c=0.3)
    x_adv = attack(net, x, y)
    assert (net(x_adv).argmax(1) != y).all()
    reached = threat.distance(x_adv, x)
    assert (reached >= smallest - 1e-9).all()
    torch.testing.assert_close(reached, smallest, atol=2e-3, rtol=0.15 if norm == "linf" else 0.03)


def test_confidence_pushes_beyond_the_boundary():
    net, _, x, y = two_classes()
    x_adv = attacks.CW(Threat("l2", math.inf), steps=100, search_steps=6, first_c=1.0, confidence=0.3)(net, x, y)
    logits = net(x_adv)
    assert (logits.gather(1, 1 - y[:, None]) - logits.gather(1, y[:, None])).min() >= 0.3 - 1e-6


def test_the_nearest_success_is_projected_into_the_ball(net, digits):
    threat = Threat("l2", 0.2)
    x, y = digits.x[:15], digits.y[:15]
    options = {"steps": 30, "search_steps": 3, "first_c": 3.0, "learning_rate": 0.05}
    bounded = attacks.CW(threat, **options)(net, x, y)
    free = attacks.CW(Threat("l2", math.inf), **options)(net, x, y)
    assert threat.distance(bounded, x).max() <= 0.2
    wrong = predict(net, free, 1).label != y
    assert wrong.float().mean() > 0.6 and threat.distance(free, x)[wrong].max() > 0.2
    inside = threat.distance(free, x) <= 0.2 - 1e-4
    torch.testing.assert_close(bounded[inside], free[inside], atol=1e-4, rtol=0)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_float16_survives_an_image_without_success(norm):
    """The published search takes c from 0.001 to 100,000, which float16 does not reach."""
    net, _, x, _ = two_classes()
    net.bias.data += torch.tensor([100.0, 0.0])
    y = torch.zeros(len(x), dtype=torch.int64)
    x_adv = attacks.CW(Threat(norm, 0.5), steps=2)(net.half(), x.half(), y)
    assert x_adv.dtype == torch.float16 and x_adv.isfinite().all()


def test_success_on_a_random_network_is_that_of_the_ensemble():
    torch.manual_seed(0)
    net, _, x, y = two_classes()
    bnn = bayesianize(net, init_std=0.3)
    attack = attacks.CW(
        Threat("l2", math.inf), steps=40, search_steps=4, first_c=1.0, learning_rate=0.02, eot=2, selection_samples=100
    )
    wrong = predict(bnn, attack(bnn, x, y, seed=0), 400, seed=1).probs.gather(1, 1 - y[:, None])
    assert wrong.min() > 0.5  # not at the boundary, where a point succeeds on some weight samples only
    assert wrong.mean() < 0.75


def test_bad_options_are_refused():
    for threat, options, message in (
        (Threat("l1", 1.0), {}, "'l1'; use PGD"),
        (Threat("l2", 1.0, (0.0, math.inf)), {}, "must be finite"),
        (Threat("l2"), {"first_c": 0.0}, "first_c .*0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            attacks.CW(threat, **options)
