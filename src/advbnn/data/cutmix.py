"""CutMix: a box of another image in each image, and labels mixed by area (Yun et al., 2019)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from advbnn.data.augment import integers


@dataclass(frozen=True, kw_only=True)
class CutMix:
    """Pastes a box of another training image; the label is then a distribution over the classes.

    The share of the area is uniform in [0, 1], the box has the proportions of the image, and its centre is uniform. The
    part of the box outside the image is cut off, and the label is mixed by the rest. Every image has a box of its own;
    in the authors' code a batch shares one.
    """

    numbers: ClassVar[int] = 3

    def apply(
        self, images: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor, uniform: Tensor, classes: int
    ) -> tuple[Tensor, Tensor]:
        """The mixed images, and their labels as probabilities, [N, classes], for the numbers `uniform`, [N, 3]."""
        height, width = images.shape[-2:]
        side = uniform[:, 0].sqrt()
        rows = _around(height, integers(uniform[:, 1], height), side)
        columns = _around(width, integers(uniform[:, 2], width), side)
        inside = rows[:, :, None] & columns[:, None, :]
        share = inside.flatten(1).float().mean(1, keepdim=True)
        own, other = (functional.one_hot(y, classes).float() for y in (labels, other_labels))
        return torch.where(inside[:, None], others, images), own + share * (other - own)


def _around(size: int, centre: Tensor, side: Tensor) -> Tensor:
    """[N, size]: the places within half of `side`, a fraction of `size`, of each centre."""
    half = ((size * side).long() // 2)[:, None]
    place = torch.arange(size, device=centre.device) - centre[:, None]
    return (place >= -half) & (place < half)
