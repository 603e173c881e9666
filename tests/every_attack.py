"""One line per attack, with as little work as exercises it, and a network and images to attack."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from advbnn import attacks
from advbnn.attacks.threat import Threat

LINF, L2, L1 = Threat("linf", 0.1), Threat("l2", 0.5), Threat("l1", 2.0)

FEW = {"selection_samples": 3}
SEARCH = {"queries": 70, "directions": 8, **FEW}
ATTACKS = {
    "fgsm": attacks.FGSM,
    "bim": partial(attacks.BIM, steps=3),
    "pgd": partial(attacks.PGD, steps=3),
    "pgd-best": partial(attacks.PGD, steps=3, restarts=2, pick="best", momentum=0.9, schedule="cosine", **FEW),
    "gradient-ascent": partial(attacks.GradientAscent, steps=3),
    "apgd": partial(attacks.APGD, steps=6, restarts=2, **FEW),
    "cw": partial(attacks.CW, steps=4, search_steps=3, first_c=1.0, learning_rate=0.1, **FEW),
    "fab": partial(attacks.FAB, steps=4, targets=2, **FEW),
    "arc": partial(attacks.ARC, steps=2, members=3),
    "fixed": partial(attacks.FixedRandomness, steps=3, samples=3),
    "square": partial(attacks.Square, queries=60, **FEW),
    "nes": partial(attacks.NES, **SEARCH),
    "spsa": partial(attacks.SPSA, **SEARCH),
    "zoo": partial(attacks.ZOO, **SEARCH),
    "hopskipjump": partial(attacks.HopSkipJump, queries=200, directions=20, **FEW),
}
GRADIENT_ATTACKS = ["fgsm", "bim", "pgd", "pgd-best", "gradient-ascent", "apgd", "cw", "fab", "arc", "fixed"]
CLASSIFIERS_ONLY = ["cw", "fab", "arc", "fixed", "hopskipjump"]
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
    return ["linf", "l2"] if name in ("cw", "arc", "hopskipjump") else ["linf", "l2", "l1"]


def every(threats=(LINF, L2, L1)):
    return [pytest.param(n, t, id=f"{n}-{t.norm}") for n in ATTACKS for t in threats if t.norm in norms(n)]


def assert_within(x_adv: torch.Tensor, x: torch.Tensor, threat: Threat) -> None:
    """Measured in the tensor's dtype in two ways, and in float64."""
    assert x_adv.dtype == x.dtype and x_adv.shape == x.shape
    assert (x_adv >= threat.bounds[0]).all() and (x_adv <= threat.bounds[1]).all()
    delta, order = (x_adv - x).reshape(len(x), -1), {"linf": math.inf, "l2": 2, "l1": 1}[threat.norm]
    by_hand = {"linf": delta.abs().amax(1), "l2": delta.square().sum(1).sqrt(), "l1": delta.abs().sum(1)}[threat.norm]
    for measure in (by_hand, torch.linalg.vector_norm(delta, order, dim=1), threat.distance(x_adv, x)):
        assert all(value <= threat.eps for value in measure.tolist()), (threat, measure.max().item())


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
