"""Outputs of several networks and their gradient, with all activations or with those of few networks."""

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from advbnn.attacks.gradient import expected_gradient
from advbnn.attacks.losses import Objective
from advbnn.bayes.activations import outputs_of
from advbnn.bayes.modes import Modes
from advbnn.bayes.prediction import Ensemble

X = torch.rand(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 4


class Watched(nn.Module):
    """Counts its passes, and the networks whose activations are alive at the same time."""

    def __init__(self, alive: list[weakref.ref[Tensor]]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 9).double(), nn.Linear(9, 4).double()
        self.passes, self.most, self._alive = 0, 0, alive

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        self.most = max(self.most, 1 + sum(storage() is not None for storage in self._alive))
        hidden = self.first(x).tanh()
        if hidden.requires_grad:
            self._alive.append(weakref.ref(hidden.untyped_storage()))
        output: Tensor = self.last(hidden)
        return output


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Modes]:
    def build(count: int, budget: int) -> Modes:
        monkeypatch.setattr(outputs_of, "__defaults__", (budget,))
        torch.manual_seed(0)
        alive: list[weakref.ref[Tensor]] = []
        return Modes([Watched(alive) for _ in range(count)], range(1, count + 1)).eval().requires_grad_(False)

    return build


def definition(model: Modes, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """log sum_k w_k p_k, and the gradient of that of class y."""
    leaf = x.clone().requires_grad_()
    log_mean = sum(weight * net(leaf).softmax(1) for weight, net in zip(model.weights, model.net, strict=True)).log()
    (gradient,) = torch.autograd.grad(log_mean.gather(1, y[:, None]).sum(), leaf)
    return log_mean.detach(), gradient


@pytest.mark.parametrize("budget", [0, 2**30])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_ensemble_is_the_same_with_any_budget(count: int, budget: int, make: Callable[[int, int], Modes]) -> None:
    model, leaf = make(count, budget), X.clone().requires_grad_()
    ensemble = Ensemble(model, samples=None)
    with torch.no_grad():
        plain = ensemble(X)
    before = [net.passes for net in model.net]
    log_mean = ensemble(leaf)
    (gradient,) = torch.autograd.grad(log_mean.gather(1, Y[:, None]).sum(), leaf)
    passes = [net.passes - earlier for net, earlier in zip(model.net, before, strict=True)]
    assert passes == [1, *[1 if budget else 2] * (count - 1)]
    # of the first network, and of the one whose gradient is computed
    assert max(net.most for net in model.net) == (count if budget else min(count, 2))
    expected, slope = definition(model, X, Y)
    for found in (plain, log_mean.detach()):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, slope)


@pytest.mark.parametrize("budget", [0, 2**30])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_attacks_on_the_mean_are_the_same_with_any_budget(
    count: int, budget: int, make: Callable[[int, int], Modes]
) -> None:
    model = make(count, budget)

    class LogOfMean(Objective):
        """The cross-entropy, not known to be it."""

    found = expected_gradient(list(model.net), X, Y, LogOfMean(average="probability"), model.weights)
    assert sum(net.passes for net in model.net) == (count if budget else 2 * count - 1)
    assert max(net.most for net in model.net) == (count if budget else min(count, 2))
    expected, slope = definition(model, X, Y)
    torch.testing.assert_close(found.gradient, -slope)
    torch.testing.assert_close(found.values, -expected.gather(1, Y[:, None])[:, 0])
    torch.testing.assert_close(found.prediction.log_softmax(1), expected)


def test_the_budget_counts_every_network() -> None:
    """Each of three keeps the output of tanh, [6, 9], and its matrix, [5, 9]; never the image, nor what is dropped."""
    passes = []

    def network(x: Tensor) -> Tensor:
        passes.append(len(x))
        x.sin().exp()
        return (x @ torch.ones(5, 9, dtype=x.dtype)).tanh()

    def count(budget: int) -> int:
        passes.clear()
        leaf = X.clone().requires_grad_()
        torch.autograd.grad(sum(outputs_of([network] * 3, leaf, budget)).sum(), leaf)
        return len(passes)

    needed = 3 * 8 * (6 * 9 + 5 * 9)
    assert count(needed) == 3
    assert count(needed - 1) == 5


@pytest.mark.parametrize("budget", [0, 2**30])
def test_outputs_without_a_backward_pass_leave_nothing(budget: int) -> None:
    """tanh keeps its own output; so do passes within a pass, whose outputs are compared and dropped."""
    alive: list[weakref.ref[Tensor]] = []
    nets = [Watched(alive).requires_grad_(False) for _ in range(3)]

    def checked(x: Tensor) -> Tensor:
        assert nets[0](x).isfinite().all()
        return nets[0](x)

    outputs = outputs_of([checked, *nets[1:]], X.clone().requires_grad_(), budget)
    assert sum(storage() is not None for storage in alive) == (3 if budget else 1)
    del outputs
    assert not any(storage() is not None for storage in alive)


def test_second_derivatives() -> None:
    nets, leaf = [nn.Linear(5, 4).double().requires_grad_(False) for _ in range(2)], X.clone().requires_grad_()

    def curvature(outputs: list[Tensor]) -> Tensor:
        (gradient,) = torch.autograd.grad(sum(output.tanh().exp().sum() for output in outputs), leaf, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), leaf)[0]

    found = curvature(outputs_of([lambda x: nets[0](x).tanh(), nets[1]], leaf))
    torch.testing.assert_close(found, curvature([nets[0](leaf).tanh(), nets[1](leaf)]))


def test_gradients_of_weights_are_not_lost() -> None:
    nets = [nn.Linear(5, 4).double() for _ in range(2)]
    for x in (X, X.clone().requires_grad_(), X.clone().requires_grad_() * 1):
        sum(outputs_of(nets, x, budget=0)).sum().backward()
    for net in nets:
        torch.testing.assert_close(net.weight.grad, 3 * X.sum(0).expand(4, 5))
    nn.ModuleList(nets).requires_grad_(False)
    leaf = X.clone().requires_grad_()
    sum(outputs_of(nets, leaf * 2, budget=0)).sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * sum(net.weight.sum(0) for net in nets).expand(6, 5))


def test_other_transforms_and_changes_in_place() -> None:
    nets = [nn.Linear(5, 4).double() for _ in range(2)]

    def total(x: Tensor) -> Tensor:
        return sum(output.logsumexp(1).sum() for output in outputs_of(nets, x))

    leaf = X.clone().requires_grad_()
    torch.testing.assert_close(torch.func.grad(total)(X), torch.autograd.grad(total(leaf), leaf)[0])

    def changes(x: Tensor) -> Tensor:
        found = x.exp()
        output = found * 1.0
        found += 1  # its derivative is itself
        return output

    leaf = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="in place"):
        torch.autograd.grad(sum(outputs_of([changes, *nets], leaf)[0]).sum(), leaf)
