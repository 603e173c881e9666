"""One line an attack, with as little work as shows it in full, and a network and images to attack."""

import itertools
import math

import pytest
import torch
from torch import nn

from advbnn import attacks
from advbnn.attacks.threat import Threat

LINF, L2, L1 = Threat("linf", 0.1), Threat("l2", 0.5), Threat("l1", 2.0)

ATTACKS = {
    "fgsm": lambda threat, **options: attacks.FGSM(threat, **options),
    "bim": lambda threat, **options: attacks.BIM(threat, steps=3, **options),
    "pgd": lambda threat, **options: attacks.PGD(threat, steps=3, **options),
    "pgd-best": lambda threat, **options: attacks.PGD(
        threat, steps=3, restarts=2, pick="best", momentum=0.9, schedule="cosine", selection_samples=3, **options
    ),
    "sgd": lambda threat, **options: attacks.GradientAscent(threat, steps=3, **options),
    "apgd": lambda threat, **options: attacks.APGD(threat, steps=6, restarts=2, selection_samples=3, **options),
    "cw": lambda threat, **options: attacks.CW(
        threat, steps=4, search_steps=3, first_c=1.0, learning_rate=0.1, selection_samples=3, **options
    ),
    "square": lambda threat, **options: attacks.Square(threat, queries=60, selection_samples=3, **options),
    "nes": lambda threat, **options: attacks.NES(threat, queries=70, directions=8, selection_samples=3, **options),
    "spsa": lambda threat, **options: attacks.SPSA(threat, queries=70, directions=8, selection_samples=3, **options),
    "zoo": lambda threat, **options: attacks.ZOO(threat, queries=70, directions=8, selection_samples=3, **options),
}
GRADIENT_ATTACKS = [n for n in ATTACKS if n.startswith(("fgsm", "bim", "pgd", "sgd", "apgd", "cw"))]
CLASSES = 5


def small_net(shape=(1, 4, 4), dtype=torch.float32) -> nn.Module:
    """Smooth, so that no gradient is exactly zero, and in training mode with statistics worth keeping."""
    torch.manual_seed(0)
    size = math.prod(shape)
    layers = [nn.Flatten(), nn.Linear(size, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, CLASSES)]
    net = nn.Sequential(*layers)
    net[2].running_var.uniform_(0.5, 1.5)
    return net.to(dtype)


def images(n=6, shape=(1, 4, 4), dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(n, *shape, generator=generator).to(dtype)
    return x, torch.randint(CLASSES, (n,), generator=generator)


def supported(name: str, threat: Threat) -> bool:
    return not (name == "cw" and threat.norm == "l1")


def every(threats=(LINF, L2, L1)):
    pairs = itertools.product(ATTACKS, threats)
    return [pytest.param(n, t, id=f"{n}-{t.norm}") for n, t in pairs if supported(n, t)]


X, Y = images()


def predicted(model: nn.Module):
    """Labels that no attack can take for successes from the start."""
    return model.eval()(X).argmax(1)
