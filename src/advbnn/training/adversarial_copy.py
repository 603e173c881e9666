"""A training set of adversarial examples, which the second network of boosted adversarial training learns."""

from typing import Any

import torch
from torch import nn

from advbnn.attacks import PGD
from advbnn.data.augment import to_float
from advbnn.data.imageset import Examples, ImageSet, from_tensors
from advbnn.fast.acceleration import accelerate
from advbnn.modules import device_of
from advbnn.randomness import crafting_seed


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
