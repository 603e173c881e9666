"""Training runs that take a moment."""

from typing import Any

import torch
from torch import Tensor, nn

from advbnn.data import ImageSet, Splits
from advbnn.defenses.defense import Defense
from advbnn.defenses.profiles import defense
from advbnn.defenses.schedules import Constant
from advbnn.training.fit_result import FitResult
from advbnn.training.loop import fit


def quick(name: str = "adv_bnn", **overrides: Any) -> Defense:
    """Five steps of 16 images an epoch, the last one smaller, on the fastest net that the defence allows."""
    settings = {
        "architecture": "small_cnn" if name == "rse" else "mlp",
        "batch_size": 16,
        "schedule": Constant(epochs=2),
    }
    return defense(name, **{**settings, **overrides})


def train(splits: Splits[ImageSet], value: Defense, **options: Any) -> FitResult:
    return fit(value.build(classes=10, shape=splits.train.shape, seed=0), splits, value, **options)


def weights(model: nn.Module) -> list[Tensor]:
    return [tensor.clone() for tensor in model.state_dict().values()]


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))
