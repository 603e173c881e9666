"""Auto-PGD against a straight-line reference in float64, its targets, and random networks."""

import math

import pytest
import torch
from torch import nn

from advbnn import attacks
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import predict
from every_attack import project


class Wavy(nn.Module):
    """Curved enough that steps must shrink."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.a = 3 * torch.randn(6, 8, generator=generator, dtype=torch.float64)
        self.b = torch.randn(8, 5, generator=generator, dtype=torch.float64)

    def forward(self, x):
        return torch.sin(x @ self.a) @ self.b


def loss_and_gradient(model, z, y):
    leaf = z.clone().requires_grad_()
    loss = nn.functional.cross_entropy(model(leaf[None]), torch.tensor([y]))
    return loss.item(), torch.autograd.grad(loss, leaf)[0]


def reference(model, x, y, start, threat, steps):
    """Algorithm 1 of Croce and Hein (2020) for one example; the visited point with the largest margin."""
    checks, p = [0, math.ceil(0.22 * steps)], [0, 22]  # in hundredths of the run
    while p[-1] + max(p[-1] - p[-2] - 3, 6) <= 100:
        p.append(p[-1] + max(p[-1] - p[-2] - 3, 6))
        checks.append(math.ceil(p[-1] * steps / 100))

    def margin(z):
        logits = model(z[None])[0]
        return max(logits[j] for j in range(5) if j != y) - logits[y]

    eta, now, before = 2 * threat.eps, start, start
    f, g = loss_and_gradient(model, now, y)
    f_max, x_max, g_max = f, now, g
    f_max_then, halved_then, rises, visited = f, True, 0, [start]
    for k in range(1, steps + 1):
        step = g.sign() if threat.norm == "linf" else g / g.norm()
        z = project(now + eta * step, x, threat)
        a = 1.0 if k == 1 else 0.75
        now, before = project(now + a * (z - now) + (1 - a) * (now - before), x, threat), now
        visited.append(now)
        f_new, g = loss_and_gradient(model, now, y)
        rises += f_new > f
        f = f_new
        if f > f_max:
            f_max, x_max, g_max = f, now, g
        if k in checks:
            window = k - checks[checks.index(k) - 1]
            stuck = not halved_then and f_max <= f_max_then
            halved_then = rises < 0.75 * window or stuck
            if halved_then:
                eta, now, before, f, g = eta / 2, x_max, x_max, f_max, g_max
            f_max_then, rises = f_max, 0
    return max(visited, key=margin)


@pytest.mark.parametrize("threat", [Threat("linf", 0.2), Threat("l2", 0.5)], ids=lambda t: t.norm)
def test_agrees_with_a_straight_line_reference(threat):
    model = Wavy()
    x = torch.rand(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = model(x).argmax(1)
    starts = {}

    class Noting(attacks.APGD):
        def _climb(self, oracle, objective, ball, y, labels, start, active, run):
            starts.update(zip(active.tolist(), start, strict=True))
            return super()._climb(oracle, objective, ball, y, labels, start, active, run)

    found = Noting(threat, steps=40)(model, x, y, seed=0)
    for i in range(6):
        expected = reference(model, x[i], y[i].item(), starts[i], threat, 40)
        torch.testing.assert_close(found[i], expected, atol=1e-9, rtol=0)


class Ruling(nn.Module):
    """A linear network with logits of -inf for the classes from `even` on in even rows, from `odd` on in odd rows."""

    def __init__(self, even: int, odd: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8, generator=torch.Generator().manual_seed(3)))
        self.left = (even, odd)

    def forward(self, x):
        left = torch.tensor(self.left)[torch.arange(len(x)) % 2]
        return (x @ self.weight).masked_fill(torch.arange(8) >= left[:, None], -torch.inf)


RULING_X = torch.rand(8, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("targets", [1, 3, 7])
@pytest.mark.parametrize("left", [2, 3, 4, 8])
def test_only_possible_targets_are_tried(left, targets):
    model, x = Ruling(left, left), RULING_X
    y = model(x).argmax(1)
    narrow = attacks.APGD(Threat("linf", 1e-5), steps=4, loss="dlr", targets=targets).run(model, x, y, seed=0)
    assert narrow.queries.tolist() == [1 + 5 * min(targets, left - 1)] * 8
    wide = Threat("linf", 0.5)
    towards = attacks.APGD(wide, steps=10, loss="dlr", targets=targets)(model, x, y, seed=0)
    away = attacks.APGD(wide, steps=10, loss="margin")(model, x, y, seed=0)
    assert (model(towards).argmax(1) != y).sum() >= (model(away).argmax(1) != y).sum() > 0


def test_each_example_has_its_own_targets():
    model, met = Ruling(2, 5), []
    y = model(RULING_X).argmax(1)

    class Noting(attacks.APGD):
        def _runs(self, prediction, y):
            runs = super()._runs(prediction, y)
            met.extend(labels[:, 1] for _, labels in runs)
            return runs

    Noting(Threat("linf", 1e-5), steps=2, loss="dlr", targets=7)(model, RULING_X, y, seed=0)
    tried = torch.stack(met, 1)
    assert tried.shape == (8, 4)
    for number, (row, own) in enumerate(zip(tried.tolist(), y.tolist(), strict=True)):
        assert sorted(set(row)) == [c for c in range(5 if number % 2 else 2) if c != own]


def test_an_example_with_a_single_class_cannot_be_attacked():
    model, y = Ruling(1, 1), torch.zeros(8, dtype=torch.int64)
    x_adv = attacks.APGD(Threat("linf", 0.3), steps=3, loss="dlr", targets=3)(model, RULING_X, y, seed=0)
    assert (model(x_adv).argmax(1) == y).all()


def test_comparing_at_checkpoints_takes_fewer_passes_and_is_as_strong(bnn, digits):
    left, passes = [], []
    for compare in ("every step", "checkpoints"):
        attack = attacks.APGD(Threat("linf", 0.1), steps=30, eot=10, selection_samples=10, compare=compare)
        found = attack.run(bnn, digits.x, digits.y, seed=0)
        assert attack.threat.distance(found.x_adv, digits.x).max() <= 0.1 + 1e-6
        labels = torch.stack([predict(bnn, found.x_adv, seed=seed).label for seed in range(100, 110)])
        left.append((labels == digits.y).double().mean().item())
        passes.append(found.queries.double().mean().item())
    assert passes[0] == 10 * (1 + 31 + 31)
    assert passes[1] <= 10 * (1 + 31 + 18)
    # a standard error of 3 points for either, if its images were independent of those of the other, which are the same
    assert left[1] < left[0] + 0.06
    assert attacks.identity.settings_of(attack)["compare"] == "checkpoints"


def test_where_points_are_compared_is_the_same_to_a_deterministic_network(net, digits):
    one, other = (
        attacks.APGD(Threat("linf", 0.1), steps=8, compare=compare)(net, digits.x[:8], digits.y[:8], seed=0)
        for compare in ("every step", "checkpoints")
    )
    assert torch.equal(one, other)


def test_bad_options_are_refused(net, digits):
    for options, message in (
        ({"compare": "never"}, "compare=.*checkpoints"),
        ({"targets": 3}, "targets .*loss='dlr'"),
        ({"targets": 10, "loss": "dlr"}, "targets .*10"),
        ({"threat": Threat("linf", math.inf)}, "finite eps"),
    ):
        with pytest.raises(ValueError, match=message):
            attacks.APGD(**{"threat": Threat(), **options})(net, digits.x[:2], digits.y[:2])
