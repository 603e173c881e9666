"""One line per attack, with as little work as exercises it, and a network and images to attack."""

import math

import pytest
import torch
from torch import nn

from advbnn import attacks
from advbnn.attacks.threat import Threat

LINF, L2, L1 = Threat("linf", 0.1), Threat("l2", 0.5), Threat("l1", 2.0)

FEW = {"selection_samples": 3}
SEARCH = {"queries": 70, "directions": 8, **FEW}
ATTACKS = {
    "fgsm": lambda threat, **options: attacks.FGSM(threat, **options),
    "bim": lambda threat, **options: attacks.BIM(threat, steps=3, **options),
    "pgd": lambda threat, **options: attacks.PGD(threat, steps=3, **options),
    "pgd-best": lambda threat, **options: attacks.PGD(
        threat, steps=3, restarts=2, pick="best", momentum=0.9, schedule="cosine", **FEW, **options
    ),
    "gradient-ascent": lambda threat, **options: attacks.GradientAscent(threat, steps=3, **options),
    "apgd": lambda threat, **options: attacks.APGD(threat, steps=6, restarts=2, **FEW, **options),
    "cw": lambda threat, **options: attacks.CW(
        threat, steps=4, search_steps=3, first_c=1.0, learning_rate=0.1, **FEW, **options
    ),
    "square": lambda threat, **options: attacks.Square(threat, queries=60, **FEW, **options),
    "nes": lambda threat, **options: attacks.NES(threat, **SEARCH, **options),
    "spsa": lambda threat, **options: attacks.SPSA(threat, **SEARCH, **options),
    "zoo": lambda threat, **options: attacks.ZOO(threat, **SEARCH, **options),
}
GRADIENT_ATTACKS = ["fgsm", "bim", "pgd", "pgd-best", "gradient-ascent", "apgd", "cw"]
CLASSES = 5


def small_net(shape=(1, 4, 4), dtype=torch.float32) -> nn.Module:
    """Smooth, so that no gradient is exactly zero, and in training mode with running statistics."""
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


def norms(name: str) -> list[str]:
    """The norms that an attack supports."""
    return ["linf", "l2"] if name == "cw" else ["linf", "l2", "l1"]


def every(threats=(LINF, L2, L1)):
    return [pytest.param(n, t, id=f"{n}-{t.norm}") for n in ATTACKS for t in threats if t.norm in norms(n)]


def project(z, x, threat: Threat):
    """One example moved into ball and box, for straight-line references in linf and l2."""
    delta = z - x
    if threat.norm == "linf":
        delta = delta.clamp(-threat.eps, threat.eps)
    elif delta.norm() > threat.eps:
        delta = delta * threat.eps / delta.norm()
    return (x + delta).clamp(0, 1)


X, Y = images()


def predicted(model: nn.Module):
    """Labels under which every example is classified correctly before the attack."""
    return model.eval()(X).argmax(1)
