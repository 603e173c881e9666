"""Augmentation of whole batches on the device that holds them, driven by uniform numbers.

`Batches` draws the numbers of a whole epoch in advance, so that a step can be repeated, resumed or distributed.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from advbnn.errors import ArgumentError, one_of, positive_whole

NAMED = ("crop_flip", "cutmix", "idbh_weak", "idbh_strong")
"""Augmentations by name; see `named_augmentation`."""


class Augmentation(ABC):
    """A random change of each image of a batch, independently."""

    numbers: ClassVar[int]
    """Uniform numbers per image."""

    @abstractmethod
    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        """The changed images, [N, C, H, W], for the numbers `uniform`, [N, numbers], on the same device."""

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The changed images, for numbers drawn from `generator` (torch's default one if left out)."""
        device = images.device if generator is None else generator.device
        uniform = torch.rand(len(images), self.numbers, generator=generator, device=device)
        return self.apply(images, uniform.to(images.device))


@dataclass(frozen=True, kw_only=True)
class RandomCrop(Augmentation):
    """Pads with `padding` black pixels on every side and crops to the original size at a random position.

    None is the usual 4 pixels for images of 32 x 32 pixels or more, and an eighth of the shorter side of smaller ones.
    """

    numbers: ClassVar[int] = 2
    padding: int | None = None

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        padding = min(4, height // 8, width // 8) if self.padding is None else self.padding
        top, left = integers(uniform, 2 * padding + 1).unbind(1)
        # A view of every window of every image, [N, C, top, left, H, W]: only the chosen ones are copied.
        windows = F.pad(images, [padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(len(images), device=images.device), :, top, left]


@dataclass(frozen=True, kw_only=True)
class HorizontalFlip(Augmentation):
    """Mirrors left and right with probability one half."""

    numbers: ClassVar[int] = 1

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        return torch.where(uniform[:, 0, None, None, None] < 0.5, images.flip(-1), images)


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop(Augmentation):
    """A random square with a share of the area that is uniform in `scale`, resized to size x size.

    Bilinear with antialiasing, computed as a product with one small matrix per image and axis. In double precision,
    because TF32 and autocast would round the images. The result is float32 in [0, 1], also for uint8 images.
    """

    numbers: ClassVar[int] = 3
    size: int
    scale: tuple[float, float] = (0.8, 0.9)

    def __post_init__(self) -> None:
        positive_whole("size", self.size)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ArgumentError(f"scale must be a range (low, high) of shares within (0, 1], got {self.scale}")

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        low, high = self.scale
        area = (low + (high - low) * uniform[:, 0]) * height * width
        side = area.sqrt().round().clamp(1, min(height, width)).long()
        top, left = integers(uniform[:, 1], height - side + 1), integers(uniform[:, 2], width - side + 1)
        rows, columns = _resize_matrix(top, side, height, self.size), _resize_matrix(left, side, width, self.size)
        resized = rows[:, None] @ to_float(images).double() @ columns[:, None].transpose(-2, -1)
        return resized.float().clamp(0, 1)


def integers(uniform: Tensor, count: Tensor | int) -> Tensor:
    """Uniform integers 0..count-1 (the product alone may round up to `count` itself)."""
    return (uniform * count).long().clamp(max=count - 1)


def _resize_matrix(start: Tensor, length: Tensor, total: int, size: int) -> Tensor:
    """[N, size, total]: weights that resize `length` of `total` pixels, beginning at `start`, to `size` pixels.

    A new pixel is a mean of old ones, weighted by a triangle around its centre as wide as an old pixel or, if the image
    shrinks, as a new one. Pixels outside the range have weight 0.
    """
    pixel = torch.arange(total, device=start.device) - start[:, None]
    ratio = length[:, None].double() / size
    centre = (torch.arange(size, device=start.device) + 0.5) * ratio
    distance = (pixel[:, None, :] + 0.5 - centre[:, :, None]).abs() / ratio.clamp(min=1)[:, :, None]
    inside = (pixel >= 0) & (pixel < length[:, None])
    weight = (1 - distance).clamp(min=0) * inside[:, None, :]
    return weight / weight.sum(-1, keepdim=True)


def to_float(images: Tensor) -> Tensor:
    """uint8 0..255 as float32 in [0, 1]; floating point unchanged."""
    # A product, because CUDA replaces the division by one: this way CPU and GPU give the same bits.
    return images.float() * (1 / 255) if images.dtype == torch.uint8 else images


def augment(images: Tensor, augmentations: Sequence[Augmentation], uniform: Tensor) -> Tensor:
    """Applies one augmentation after the other, each with its own columns of `uniform`."""
    columns = uniform.split([a.numbers for a in augmentations], dim=1) if augmentations else ()
    for augmentation, numbers in zip(augmentations, columns, strict=True):
        images = augmentation.apply(images, numbers)
    return images


def named_augmentation(augment: bool | str, data: str) -> tuple[Augmentation, ...]:
    """The augmentation called `augment`, one of `NAMED`; True is the usual one for the dataset `data`, False none.

    `"cutmix"` is `"crop_flip"` here: mixing is up to `Batches`.
    """
    if isinstance(augment, bool):
        return usual_augmentation(data) if augment else ()
    if augment in ("crop_flip", "cutmix"):
        return RandomCrop(), HorizontalFlip()
    one_of("augment", augment, NAMED)
    from advbnn.data.idbh import idbh

    return idbh(erasing=1.0 if augment == "idbh_strong" else 0.5)


def usual_augmentation(name: str) -> tuple[Augmentation, ...]:
    """The augmentation of the authors' code for a dataset; none for other datasets.

    A part of a dataset (`cifar10[45000 of 50000]`, `stl10-subset`) is treated like the whole.
    """
    crop, resized = RandomCrop(), RandomResizedCrop(size=64)
    crops: dict[str, Augmentation] = {"cifar10": crop, "stl10": crop, "imagenet143": resized}
    whole = re.split(r"[-\[]", name)[0]
    return (crops[whole], HorizontalFlip()) if whole in crops else ()
