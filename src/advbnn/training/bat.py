"""Boosted adversarial training (Pinot et al., 2020): an adversarially trained network, and one for its blind spots."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from advbnn import models
from advbnn.attacks import PGD
from advbnn.bayes.modes import Modes
from advbnn.data.augment import to_float
from advbnn.data.imageset import Examples, ImageSet, from_tensors
from advbnn.data.splits import Splits
from advbnn.defenses.bat import boosted_pair
from advbnn.defenses.defense import Defense
from advbnn.errors import ArgumentError
from advbnn.fast.acceleration import accelerate
from advbnn.modules import device_of
from advbnn.randomness import crafting_seed, seeded
from advbnn.training.loop import fit


def fit_bat(
    net: nn.Module,
    data: Splits[Any],
    defense: Defense,
    *,
    seed: int = 0,
    out: Path | str | None = None,
    resume: bool = False,
    batch_size: int = 500,
    **options: Any,
) -> Modes:
    """Train the two networks f1 and f2 of BAT, and mix them: f1 with probability 0.9.

    f1 is trained by `defense`. f2, of the same architecture with fresh weights, is trained by the same recipe without
    an attack, on one adversarial example of f1 for every training image. Both are runs that resume: `out/first` and
    `out/second`.

    Args:
        net: a plain network, trained in place as f1.
        defense: adversarial training, such as `defense("adv", "cifar10", "common")`.
        batch_size: images attacked at a time; other `options` as for `fit`.
    """
    if defense.attack is None:
        raise ArgumentError("defense must train against an attack: use defense('adv', ...), or set attack")
    folders = [None, None] if out is None else [Path(out) / "first", Path(out) / "second"]
    first = fit(net, data, defense, seed=seed, out=folders[0], resume=resume, **options).model
    attacked = adversarial_copy(first, data.train, defense.attack, batch_size=batch_size, seed=seed)
    plain = replace(defense, name="none", attack=None, radius_warmup=0)
    second = _fresh(first, plain, data.train, seed + 1)
    done = fit(second, Splits(attacked, data.test), plain, seed=seed + 1, out=folders[1], resume=resume, **options)
    return boosted_pair(first.eval(), done.model.eval())


def _fresh(net: nn.Module, defense: Defense, data: Examples, seed: int) -> nn.Module:
    """A network like `net` with fresh weights; built by the defence if that is how `net` was, so that its run loads."""
    device, classes = device_of(net, data.device), len(data.classes)
    if defense.has_built(net, classes=classes, shape=data.shape):
        return defense.build(classes=classes, shape=data.shape, seed=seed).to(device)
    with seeded(seed, device):
        return models.reset_parameters_(copy.deepcopy(net))


def adversarial_copy(model: nn.Module, data: Examples, attack: PGD, *, batch_size: int = 500, seed: int = 0) -> Any:
    """The examples with every input replaced by an adversarial example of `model`; images are rounded to 8 bits."""
    device, found = device_of(model, data.device), []
    fast = accelerate(model)
    for number, (x, y) in enumerate(data.gather(list(torch.arange(len(data)).split(batch_size)))):
        x_adv = attack(fast, to_float(x.to(device)), y.to(device), seed=crafting_seed(seed, number))
        found.append((x_adv * 255).round().to(torch.uint8) if isinstance(data, ImageSet) else x_adv)
    inputs = torch.cat(found).to(data.device)
    # a name by which the augmentation of the dataset is found
    return from_tensors(inputs, data.targets, classes=data.classes, name=f"{data.name}-attacked")
