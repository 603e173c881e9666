"""Probes of whether a network remembers the images that it is tested on.

A network that stores test images with their labels resists attacks at these images and nowhere else. Some kinds can be
told from robustness by comparing the test images with the same images shifted by one pixel, which nobody stored.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from advbnn.attacks.threat import Threat
from advbnn.evaluation.attackable import Attackable
from advbnn.evaluation.audit.consistency import total_variation
from advbnn.evaluation.audit.history import relative_change
from advbnn.randomness import seeded

_EQUAL = 1e-6
"""The difference of outputs, relative to the largest, up to which they are equal."""

_FEW_IMAGES = 64
"""The images of a batch that are compared with each other."""

_MIDDLE = 0.02
"""How far from the middle between two images, relative to their distance, outputs are compared."""


@torch.no_grad()
def memory(model: Attackable, x: Tensor, nearby: Tensor, threat: Threat, seed: int) -> dict[str, Tensor]:
    """Per image, [n] each:

    - constant: the logits are equal at the image and at random points of the allowed set around it;
      constant_elsewhere: the same for the shifted image and points.
    - jump_elsewhere: the total variation between the predictions of the shifted `x` and the shifted `nearby`, which is
      `x` up to a tiny change.
    - nearest: 1 if on the way to a similar image the logits are those of the nearer of the two, up to the middle, and
      stay the same if a quarter of the pixels is replaced; 0 if not; NaN of all but a few images.

    Quantised inputs make logits constant too, but at shifted images as well. All outputs have the same seed.
    """

    def logits(z: Tensor) -> Tensor:
        with seeded(seed, x.device):
            found: Tensor = model(z)
        return found

    generator = torch.Generator(x.device).manual_seed(seed)
    around = [threat.start(x, generator) for _ in range(2)]
    own, shifted = logits(x), logits(_shift(x))
    nearest = torch.full((len(x),), math.nan, device=x.device)
    nearest[:_FEW_IMAGES] = _nearest(logits, x[:_FEW_IMAGES], generator).float()
    return {
        "constant": torch.stack([_equal(own, logits(z)) for z in around]).all(0),
        "constant_elsewhere": torch.stack([_equal(shifted, logits(_shift(z))) for z in around]).all(0),
        "jump_elsewhere": total_variation(shifted.softmax(1), logits(_shift(nearby)).softmax(1)),
        "nearest": nearest,
    }


def _nearest(logits: Callable[[Tensor], Tensor], x: Tensor, generator: torch.Generator) -> Tensor:
    own, flat = logits(x), x.flatten(1).float()
    distances = torch.cdist(flat, flat)
    distances[_equal(own[:, None], own[None])] = torch.inf  # where another output cannot be told
    distance, other = distances.min(1)
    way = x[other] - x
    replaced = torch.rand(x.shape, generator=generator, device=x.device) < 0.25
    return (
        distance.isfinite()
        & _equal(own, logits(x + (0.5 - _MIDDLE) * way))
        & _equal(own[other], logits(x + (0.5 + _MIDDLE) * way))
        & _equal(own, logits(torch.where(replaced, x[other], x)))
    )


def _shift(x: Tensor) -> Tensor:
    return x.roll(1, -1)


def _equal(a: Tensor, b: Tensor) -> Tensor:
    return relative_change(a, b) <= _EQUAL
