"""The PGD family against straight-line references in float64 with the same noise."""

import math

import pytest
import torch
from torch import nn

from advbnn import attacks
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from every_attack import project

THREATS = [Threat("linf", 0.1), Threat("l2", 0.4)]


class Scripted(nn.Module):
    """A network whose weight samples are a fixed sequence, which the reference repeats call by call."""

    def __init__(self, calls: int = 60) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.weights = torch.randn(calls, 6, 4, generator=generator, dtype=torch.float64)
        self.call = 0

    def forward(self, x):
        self.call += 1
        return torch.tanh(x.flatten(1)) @ self.weights[self.call - 1]


def examples(n=5):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(4, (n,), generator=generator)


def ce_gradient(z, w, y):
    """d(-log p_y)/dx of one example of the scripted network, by hand."""
    logits = torch.tanh(z) @ w
    p = logits.softmax(0)
    p[y] -= 1
    return (w @ p) * (1 - torch.tanh(z) ** 2)


def reference(x, y, weights, threat, sizes, eot=1, momentum=0.0, plain=False):
    """x <- Pi(x + a d(g)), one example at a time."""
    result = []
    for origin, label in zip(x, y.tolist(), strict=True):
        z, past, call = origin.clone(), torch.zeros_like(origin), 0
        for size in sizes:
            g = torch.zeros_like(z)
            for _ in range(eot):
                g += ce_gradient(z, weights[call], label) / eot
                call += 1
            if momentum:
                past = momentum * past + g / g.abs().mean()
                g = past
            direction = g if plain else g.sign() if threat.norm == "linf" else g / g.norm()
            z = project(z + size * direction, origin, threat)
        result.append(z)
    return torch.stack(result)


def still(threat, **options):
    return attacks.PGD(threat, random_start=False, **options)


COSINE = lambda t: [0.02 * (1 + math.cos(math.pi * i / 4)) for i in range(4)]  # noqa: E731
PLAIN = {"steps": 6, "step_size": 0.5, "schedule": "constant"}
CASES = {  # the attack, and the step sizes and options of the reference
    "fgsm": (attacks.FGSM, {}, lambda t: [t.eps], {}),
    "bim": (attacks.BIM, {"steps": 5}, lambda t: [t.eps / 2] * 5, {}),
    "pgd": (still, {"steps": 8, "step_size": 0.03}, lambda t: [0.03] * 8, {}),
    "linear": (still, {"steps": 4, "step_size": 0.04, "schedule": "linear"}, lambda t: [0.04, 0.03, 0.02, 0.01], {}),
    "cosine": (still, {"steps": 4, "step_size": 0.04, "schedule": "cosine"}, COSINE, {}),
    "momentum": (still, {"steps": 6, "step_size": 0.03, "momentum": 0.8}, lambda t: [0.03] * 6, {"momentum": 0.8}),
    "eot": (still, {"steps": 5, "step_size": 0.03, "eot": 4}, lambda t: [0.03] * 5, {"eot": 4}),
    "plain": (attacks.GradientAscent, PLAIN, lambda t: [0.5] * 6, {"plain": True}),
}


@pytest.mark.parametrize("threat", THREATS, ids=lambda t: t.norm)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_a_straight_line_reference(case, threat):
    build, settings, sizes, options = CASES[case]
    model, (x, y), steps = Scripted(), examples(), sizes(threat)
    found = build(threat, **settings)(model, x, y)
    first = model.call - len(steps) * options.get("eot", 1)  # earlier calls test whether the network is random
    expected = reference(x, y, model.weights[first:], threat, steps, **options)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_the_papers_attack():
    attack, model, (x, y) = attacks.paper_pgd(0.03), Scripted(), examples()
    expected = reference(x, y, model.weights, Threat("linf", 0.03), sizes=[0.007] * 20)
    torch.testing.assert_close(attack(model, x, y), expected, atol=1e-12, rtol=0)
    assert model.call == 20  # one weight sample per step, and no other pass


def test_an_example_stops_at_the_first_point_that_is_misclassified():
    class Threshold(torch.nn.Module):
        def forward(self, x):
            return torch.cat([x - 0.5, 0.5 - x], 1)

    x, y = torch.tensor([[0.55], [0.65], [0.95]], dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    attack = still(Threat("linf", 0.3), steps=6, step_size=0.1, pick="first")
    expected = torch.tensor([[0.45], [0.45], [0.65]], dtype=torch.float64)  # after 1, 2 and all steps
    torch.testing.assert_close(attack(Threshold(), x, y), expected)


def test_the_default_step_size():
    assert attacks.PGD(Threat("linf", 0.1), steps=50).first_step == pytest.approx(0.005)
    assert attacks.PGD(Threat("linf", 0.1), relative_step_size=0.25).first_step == pytest.approx(0.025)
    assert attacks.FGSM(Threat()).steps == 1 and attacks.FGSM(Threat("linf", 0.1)).first_step == 0.1
    assert attacks.FGSM(Threat("linf", math.inf), step_size=0.2).first_step == 0.2
    assert attacks.GradientAscent(Threat()).first_step == 1
    assert attacks.GradientAscent(Threat("l2", 2.0), relative_step_size=0.5).first_step == 1


def test_bad_options_are_refused():
    for options, message in (
        ({"steps": 0}, "steps .*0"),
        ({"schedule": "cosin"}, "schedule='cosin' .*'cosine'"),
        ({"pick": "worst"}, "pick='worst' .*'first'"),
        ({"pick": "first", "loss": "nll"}, "pick='first' .*'best'"),
        ({"step_size": 0.1, "relative_step_size": 0.2}, "not both"),
        ({"step_size": -0.1}, "step_size .*-0.1"),
        ({"momentum": -1}, "momentum .*-1"),
        ({"threat": Threat("linf", math.inf)}, "step_size .*eps"),
    ):
        with pytest.raises(ValueError, match=message):
            attacks.PGD(**{"threat": Threat(), **options})
        with pytest.raises(TypeError):
            attacks.FGSM(Threat(), steps=3)


class SometimesWrong(nn.Module):
    """One weight sample in ten misclassifies everything."""

    def forward(self, x):
        right = 2 - x  # the true class loses with a growing x
        wrong = torch.rand(()) < 0.1
        return torch.cat([torch.where(wrong, -50.0, right), torch.zeros_like(x)], 1)


def test_the_best_point_is_best_on_average():
    """x = 1 is best on average. Selection on a single sample would keep any point that it misclassifies by chance."""
    x, y = torch.full((20, 1), 0.5), torch.zeros(20, dtype=torch.int64)
    attack = attacks.PGD(Threat("linf", 0.5), steps=30, step_size=0.05, pick="best", selection_samples=30)
    torch.testing.assert_close(attack(SometimesWrong(), x, y, seed=0), torch.ones(20, 1))


def test_best_and_restarts_are_no_worse_than_one_run(net, digits):
    x, y = digits.x[:60], digits.y[:60]
    threat = Threat("linf", 0.15)

    def margins(attack):
        logits = net(attack(net, x, y, seed=3))
        own = logits.gather(1, y[:, None])[:, 0]
        return logits.scatter(1, y[:, None], -math.inf).amax(1) - own

    once = margins(attacks.PGD(threat, steps=10))
    for options in ({"pick": "best"}, {"restarts": 3}):
        assert (margins(attacks.PGD(threat, steps=10, **options)) >= once - 1e-3).all()


def test_selection_samples_are_not_those_of_the_steps():
    """Selection repeats its samples at every candidate; steps use fresh ones."""

    class Recorder(nn.Module):
        def __init__(self):
            super().__init__()
            self.entries = []

        def forward(self, x):
            draw = torch.randn(())
            self.entries.append((torch.is_grad_enabled(), draw.item()))
            return torch.cat([x.sum(1, keepdim=True) * draw, torch.zeros(len(x), 1)], 1)

    recorder = Recorder()
    attacks.PGD(Threat(), steps=4, eot=3, pick="best", selection_samples=5)(
        recorder, torch.rand(3, 4), torch.tensor([0, 1, 0]), seed=0
    )
    steps = [draw for graph, draw in recorder.entries if graph]
    selection = [draw for graph, draw in recorder.entries[1:] if not graph]
    assert len(set(steps)) == len(steps) == 12
    assert len(selection) == 5 * 6 and len(set(selection)) == 5
    assert not set(steps) & set(selection)


def test_more_eot_samples_are_a_stronger_attack_on_a_random_network():
    """A network whose noise dominates a single gradient."""
    torch.manual_seed(0)
    bnn = bayesianize(nn.Sequential(nn.Linear(16, 3)), init_std=0.6)
    x, y = torch.rand(200, 16), torch.zeros(200, dtype=torch.int64)
    clean = nn.functional.cross_entropy(bnn.net(x), y)

    def increase(eot, seed):
        x_adv = attacks.PGD(Threat("linf", 0.1), steps=10, eot=eot)(bnn, x, y, seed=seed)
        return (nn.functional.cross_entropy(bnn.net(x_adv), y) - clean).item()

    assert min(increase(30, seed) for seed in range(3)) > 1.2 * max(increase(1, seed) for seed in range(3))
