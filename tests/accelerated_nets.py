"""Networks of every kind, and comparisons of an accelerated network with the network itself."""

from collections import OrderedDict
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.prediction import predict
from advbnn.defenses.pni import ParametricNoise
from advbnn.defenses.rse import add_noise
from advbnn.randomness import seeded
from cheats import Wrapped

CALLS = 4
"""Calls per shape; the fast pass is built at the third."""

ATTACK = PGD(Threat("linf", 0.1), steps=5, eot=2)


def batch(n: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(n, 1, 8, 8, generator=generator), torch.randint(10, (n,), generator=generator)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
    return nn.Sequential(OrderedDict(features=features, classifier=nn.Linear(72, 10)))


class Dropping(Wrapped):
    """Dropout in evaluation mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(functional.dropout(x, 0.3, training=True))


class DataDependent(Wrapped):
    """A network that branches on its data."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x / x.max() if x.max() > 1 else x)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": network,
    "bayesian": lambda: bayesianize(network(), init_std=0.1),
    "noisy": lambda: add_noise(network()),
    "noisy weights": lambda: ParametricNoise().wrap(network()),
    "dropout": lambda: Dropping(network()),
    "partly bayesian": lambda: nn.Sequential(nn.Identity(), bayesianize(network(), init_std=0.1)),
}


def results(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Outputs with and without a gradient, and the gradient, for some seeds."""
    found: list[Tensor] = []
    for seed in range(CALLS):
        with seeded(seed, x.device):
            leaf = x.clone().requires_grad_()
            logits = model(leaf)
            (gradient,) = torch.autograd.grad(functional.cross_entropy(logits, y, reduction="sum"), leaf)
            with torch.no_grad():
                found += [logits.detach(), gradient, model(x)]
    return found


def pairs(fast: nn.Module, model: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(results(fast, x, y), results(model, x, y), strict=True)


def assert_same(model: nn.Module, fast: nn.Module, x: Tensor, y: Tensor) -> None:
    state = torch.get_rng_state()
    for a, b in pairs(fast, model, x, y):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().amax()))
    torch.testing.assert_close(*(predict(one, x, 5, seed=0).probs for one in (fast, model)), rtol=0, atol=1e-4)
    moved = (ATTACK(fast, x, y, seed=0) - ATTACK(model, x, y, seed=0)).abs()
    # rounding decides the sign of a gradient near zero
    assert (moved > 1e-6).double().mean() < 0.01
    assert torch.equal(torch.get_rng_state(), state)
