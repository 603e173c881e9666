"""Fast and eager training steps of small networks, and the noise of the fast ones."""

from typing import Any

import torch
from torch import Tensor, nn

from advbnn import models
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import Bayesian
from advbnn.bayes.priors import Prior
from advbnn.defenses.defense import Defense
from advbnn.defenses.optimizers import LangevinSampler
from advbnn.fast.philox import normals
from advbnn.models.resnet import Residual
from advbnn.training.fast_step import FastStep
from advbnn.training.objective import RobustLoss
from advbnn.training.step import EagerStep

EXAMPLES, SEED, ALPHA = 500, 12345, 0.5
ATTACK = PGD(Threat("linf", 0.1), steps=3, step_size=0.05, random_start=False)


def batch(n: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(n, 1, 8, 8, generator=generator), torch.randint(10, (n,), generator=generator)


def network() -> nn.Module:
    torch.manual_seed(0)
    return models.build("small_cnn", classes=10, image_size=8, channels=1)


def residual_network() -> nn.Module:
    torch.manual_seed(0)
    blocks = Residual(8, 8, 1), Residual(8, 16, 2)
    stem = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def fast(model: nn.Module, defense: Defense, prior: Any = None, **options: Any) -> FastStep:
    options = {"precision": torch.float32, "compiled": False, "captured": False} | options
    return FastStep(*_parts(model, defense, prior), **options)


def eager(model: nn.Module, defense: Defense, prior: Any = None) -> EagerStep:
    return EagerStep(*_parts(model, defense, prior))


def _parts(model: nn.Module, defense: Defense, prior: Any) -> tuple[RobustLoss, torch.optim.Optimizer, Defense]:
    loss = RobustLoss(model, defense.objective, EXAMPLES, prior)
    if isinstance(defense.optimizer, LangevinSampler):
        return loss, defense.optimizer.build(loss.parameters(), EXAMPLES), defense
    return loss, torch.optim.SGD(loss.parameters(), lr=0.1, momentum=0.9), defense


def counted_noise(bnn: Bayesian, stream: int) -> Tensor:
    """The fast step's noise in the order of `bnn.noise`: matrices come first in its count, then vectors."""
    parts, start = {}, 0
    for wanted in (True, False):
        entries = [(n, mu) for n, mu, _ in bnn.posterior() if (mu.dim() > 1) is wanted]
        size = sum(mu.numel() for _, mu in entries)
        pieces = normals(size, seed=SEED, stream=stream, start=start).split([mu.numel() for _, mu in entries])
        parts |= {name: piece for (name, _), piece in zip(entries, pieces, strict=True)}
        start += -(-size // 4) * 4
    return torch.cat([parts[name] for name, _, _ in bnn.posterior()])


class LaplacePrior(Prior):
    """A prior of a user's own, for which -E[log p(w)] is replaced by its value at the mean."""

    def kl(self, name: str, mu: Tensor, log_std: Tensor) -> Tensor:
        return mu.abs().sum() / 0.1 - log_std.sum()


def close(one: nn.Module, other: nn.Module, rtol: float = 1e-4, atol: float = 3e-5) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=rtol, atol=atol)
