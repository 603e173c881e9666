"""Input gradients against one graph over all weight samples, in float64, with the memory of one sample."""

import weakref

import pytest
import torch
from torch import nn

from advbnn.attacks.gradient import expected_gradient, input_gradient, mean_loss
from advbnn.attacks.losses import LOSSES, Objective
from advbnn.bayes.mean_field import bayesianize
from advbnn.randomness import seeded

K = 6
CLASSIFYING = [(loss, average) for loss in ("ce", "margin", "dlr") for average in ("loss", "probability", "logits")]


def random_net(outputs=4):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, outputs)).double()
    return bayesianize(net, init_std=0.5)


def examples():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(3, 5, dtype=torch.float64, generator=generator), torch.tensor([0, 3, 1])


def one_graph(model, x, y, loss, average, targeted):
    """The definition, with the graphs of all weight samples at once."""
    leaf = x.clone().requires_grad_()
    outputs = torch.stack([model(leaf) for _ in range(K)])
    if average == "loss":
        values = torch.stack([LOSSES[loss](z, y, targeted) for z in outputs]).mean(0)
    elif average == "probability":
        values = LOSSES[loss](outputs.softmax(-1).mean(0).log(), y, targeted)
    else:
        values = LOSSES[loss](outputs.mean(0), y, targeted)
    prediction = outputs.mean(0) if average == "logits" or loss == "nll" else outputs.softmax(-1).mean(0).log()
    return values.detach(), prediction.detach(), torch.autograd.grad(values.sum(), leaf)[0]


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize(("loss", "average"), [*CLASSIFYING, ("nll", "loss"), ("nll", "logits")])
def test_the_gradient_over_weight_samples_is_exact(loss, average, targeted):
    model, (x, y) = random_net(), examples()
    if loss == "nll":
        y = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    objective = Objective(loss=loss, average=average, targeted=targeted)
    with seeded(7):
        found = input_gradient(model, x, y, objective, K)
    with seeded(7):
        if average != "loss":
            # the samples of a coupled average have their own seed
            torch.manual_seed(int(torch.randint(2**62, ()).item()))
        expected = one_graph(model, x, y, loss, average, targeted)
    torch.testing.assert_close(found[:3], expected)


def test_the_loss_of_a_mean_probability_does_not_underflow():
    net = nn.Linear(2, 2, bias=False)
    nn.init.constant_(net.weight, 0)
    net.weight.data[0] = 150.0
    x, y = torch.ones(1, 2), torch.tensor([1])  # log p_y = -300
    slope = input_gradient(net, x, y, Objective(average="probability"), eot=3)
    assert slope.values.item() == pytest.approx(300.0)
    torch.testing.assert_close(slope.gradient, torch.full((1, 2), 150.0))


class LastClass(nn.Module):
    """A random network whose last class has a logit of -inf, or is left out."""

    def __init__(self, ruled_out: bool) -> None:
        super().__init__()
        self.net, self.ruled_out = random_net(outputs=4), ruled_out

    def forward(self, x):
        outputs = self.net(x)
        return outputs + torch.tensor([0, 0, 0, -torch.inf]) if self.ruled_out else outputs[:, :3]


@pytest.mark.parametrize("average", ["loss", "probability", "logits"])
@pytest.mark.parametrize("loss", ["ce", "margin", "dlr"])
def test_a_logit_of_minus_infinity_removes_its_class(loss, average):
    (x, _), y = examples(), torch.tensor([0, 2, 1])
    slopes = []
    for ruled_out in (True, False):
        with seeded(0):
            objective = Objective(loss=loss, average=average)
            slopes.append(input_gradient(LastClass(ruled_out), x, y, objective, K))
    torch.testing.assert_close(slopes[0].gradient, slopes[1].gradient)
    torch.testing.assert_close(slopes[0].values, slopes[1].values)


class Watched(nn.Module):
    """Counts the graphs of earlier samples that are alive when a new one begins."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.graphs, self.alive = model, [], []

    def forward(self, x):
        self.alive.append(sum(graph() is not None for graph in self.graphs))
        output = self.model(x)
        if output.grad_fn is not None:
            self.graphs.append(weakref.ref(output))
        return output


@pytest.mark.parametrize("average", ["loss", "probability", "logits"])
def test_one_graph_is_alive_at_a_time(average):
    watched, (x, y) = Watched(random_net()), examples()
    input_gradient(watched, x, y, Objective(average=average), K)
    assert len(watched.graphs) >= K and max(watched.alive) == 0


class RoughGradients(nn.Module):
    """Passes with a gradient have other weights than those without, as if of another precision."""

    def __init__(self):
        super().__init__()
        self.fine, self.rough = nn.Linear(5, 4).double(), nn.Linear(5, 4).double()

    def forward(self, x):
        return (self.rough if torch.is_grad_enabled() and x.requires_grad else self.fine)(x)


@pytest.mark.parametrize(("loss", "average"), CLASSIFYING)
@pytest.mark.parametrize("weights", [None, [0.5, 0.3, 0.2]])
def test_a_gradient_takes_differentiated_passes_alone(loss, average, weights):
    torch.manual_seed(0)
    nets, (x, y) = [RoughGradients() for _ in range(3)], examples()
    objective = Objective(loss=loss, average=average)
    found = expected_gradient(nets, x, y, objective, weights)
    expected = expected_gradient([net.rough for net in nets], x, y, objective, weights)
    torch.testing.assert_close(found.gradient, expected.gradient)
    torch.testing.assert_close(found.values, expected.values)


@pytest.mark.parametrize("weights", [None, [0.4, 0.3, 0.2, 0.1]])
def test_the_cross_entropy_of_a_mean_needs_one_pass(weights):
    torch.manual_seed(0)
    nets, (x, y) = [Watched(nn.Linear(5, 4).double()) for _ in range(4)], examples()
    found = expected_gradient(nets, x, y, Objective(average="probability"), weights)
    assert [len(net.alive) for net in nets] == [1] * 4
    certain = [lambda z, level=level: torch.stack([level * z[:, 0], -1e4 + 0 * z[:, 0]], 1) for level in (1, 3)]
    lost = expected_gradient(certain, x, torch.ones_like(y), Objective(average="probability"))
    # p_k = exp(-1e4 - k x), far below the smallest number: the largest of them has all of the share, up to exp(-2 x)
    odds = torch.exp(-2 * x[:, 0])
    torch.testing.assert_close(lost.gradient[:, 0], (1 + 3 * odds) / (1 + odds))
    assert found.gradient.isfinite().all() and not lost.gradient[:, 1:].any()


@pytest.mark.parametrize(("loss", "average"), CLASSIFYING)
def test_the_mean_over_a_finite_support_is_weighted_and_exact(loss, average):
    torch.manual_seed(0)
    nets, weights = [nn.Linear(5, 4).double() for _ in range(3)], [0.5, 0.3, 0.2]
    (x, y), objective = examples(), Objective(loss=loss, average=average)
    found = expected_gradient(nets, x, y, objective, weights)
    # each network as often as its weight says: the definition for equal weights
    repeated = [net for net, weight in zip(nets, weights, strict=True) for _ in range(round(10 * weight))]
    torch.testing.assert_close(tuple(found), tuple(expected_gradient(repeated, x, y, objective)))
    values = mean_loss((net(x) for net in nets), y, objective, weights)
    torch.testing.assert_close((values.values, values.prediction), tuple(found)[:2])
