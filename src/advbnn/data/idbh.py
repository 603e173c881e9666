"""IDBH: augmentation for adversarial training (Li and Spratling, 2023), for whole batches on their device.

Mirror, `CropShift`, exactly one of eight changes of colour or shape, and `RandomErasing`. Each change does to the bytes
of an image what Pillow does, up to rounding. Inputs in floating point, in [0, 1], are rounded to bytes first.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from advbnn.data.augment import Augmentation, HorizontalFlip, integers
from advbnn.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class CropShift(Augmentation):
    """A random window of each image at a random place of a black image.

    The window is smaller by s pixels in all, s uniform in 0..limit-1: by c columns, uniform in 0..s, and s - c rows.
    """

    numbers: ClassVar[int] = 6
    limit: int = 11

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        if not 1 <= self.limit <= min(height, width):
            raise ArgumentError(
                f"augment: CropShift with limit={self.limit}, of IDBH, needs at least as many pixels on each side, "
                f"got images of {height} x {width}; use augment=True, the usual one for the dataset, or False"
            )
        total = integers(uniform[:, 0], self.limit)
        narrower = integers(uniform[:, 1], total + 1)
        columns = _window(width, narrower, uniform[:, 2], uniform[:, 3])
        rows = _window(height, total - narrower, uniform[:, 4], uniform[:, 5])
        return _picked(images, rows[:, :, None], columns[:, None, :])


@dataclass(frozen=True, kw_only=True)
class ColorOrShape(Augmentation):
    """One of eight changes, each with probability 1/8: saturation, brightness, contrast, sharpness, autocontrast,
    equalize, shear, rotation.

    Factors are uniform in [0.1, 1.9] for saturation and sharpness, and in [0.5, 1.9] for brightness and contrast. Shear
    is by an angle uniform in [0.05, 0.15], along a random axis; rotation by 1 to 10 whole degrees; both in a random
    direction around the centre, to the nearest pixel, with black outside.
    """

    numbers: ClassVar[int] = 4

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        images = to_bytes(images)
        which, strength = integers(uniform[:, 0], 8), uniform[:, 1].double()
        wide, narrow = ((low + (1.9 - low) * uniform[:, 1]).view(-1, 1, 1, 1) for low in (0.1, 0.5))
        changed = [
            saturation(images, wide),
            brightness(images, narrow),
            contrast(images, narrow),
            sharpness(images, wide),
            autocontrast(images),
            equalize(images),
            sheared(images, (0.05 + 0.1 * strength) * _sign(uniform[:, 2]), along_rows=uniform[:, 3] < 0.5),
            rotated(images, (1.0 + integers(strength, 10)) * _sign(uniform[:, 2])),
        ]
        result = images
        for number, change in enumerate(changed):
            result = torch.where((which == number).view(-1, 1, 1, 1), change, result)
        return result


@dataclass(frozen=True, kw_only=True)
class RandomErasing(Augmentation):
    """With probability `p`, a black rectangle at a random place (Zhong et al., 2020).

    Its share of the area is uniform in `scale`, and the logarithm of its height over its width in that of `ratio`. Of
    three such shapes the first that is smaller than the image is taken; of the defaults, almost all are.
    """

    numbers: ClassVar[int] = 9
    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)

    def apply(self, images: Tensor, uniform: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        areas, ratios = uniform[:, 1:4], uniform[:, 4:7]
        area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * areas)
        low, high = map(math.log, self.ratio)
        ratio = (low + (high - low) * ratios).exp()
        heights, widths = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
        fits = (heights < height) & (widths < width)
        first = fits.int().argmax(1, keepdim=True)
        tall, wide = (sizes.gather(1, first)[:, 0] for sizes in (heights, widths))
        erased = (uniform[:, 0] < self.p) & fits.any(1)
        rows = _between(height, integers(uniform[:, 7], (height - tall + 1).clamp_min(1)), tall)
        columns = _between(width, integers(uniform[:, 8], (width - wide + 1).clamp_min(1)), wide)
        inside = erased[:, None, None] & rows[:, :, None] & columns[:, None, :]
        return images.masked_fill(inside[:, None], 0)


def idbh(*, erasing: float = 0.5) -> tuple[Augmentation, ...]:
    """IDBH-weak; with `erasing=1`, IDBH-strong."""
    return HorizontalFlip(), CropShift(), ColorOrShape(), RandomErasing(p=erasing)


def to_bytes(images: Tensor) -> Tensor:
    """Floating point in [0, 1] as uint8 0..255; uint8 unchanged."""
    return images if images.dtype == torch.uint8 else (images * 255).round().clamp(0, 255).to(torch.uint8)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """`factor` times the difference from grey; images of one channel are grey."""
    return _blended(images, _grey(images).float(), factor)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """`factor` times the image."""
    return _blended(images, torch.zeros((), device=images.device), factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """`factor` times the difference from the mean grey."""
    mean = _grey(images).double().mean((1, 2, 3), keepdim=True)
    return _blended(images, (mean + 0.5).floor().float(), factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """`factor` times the difference from the smoothed image; the outermost pixels do not change."""
    x = images.float()
    rows = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    smooth = x.clone()
    smooth[:, :, 1:-1, 1:-1] = ((box + 4 * x[:, :, 1:-1, 1:-1]) / 13 + 0.5).floor()
    return _blended(images, smooth, factor)


def autocontrast(images: Tensor) -> Tensor:
    """Each channel stretched to 0..255, unless it is constant."""
    # in double precision, since rounding decides about whole numbers
    x = images.double()
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    scale = 255.0 / (high - low).clamp_min(1)
    stretched = (x * scale + -low * scale).clamp(0, 255).to(torch.uint8)
    return torch.where(high > low, stretched, images)


def equalize(images: Tensor) -> Tensor:
    """Each channel with about equally many pixels of every value, unless it is almost constant."""
    pixels = images.flatten(2).flatten(0, 1).long()
    counts = torch.zeros(len(pixels), 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(1, pixels, torch.ones_like(pixels))
    last = counts.gather(1, pixels.amax(1, keepdim=True))
    step = (pixels.shape[1] - last) // 255
    below = counts.cumsum(1) - counts
    table = ((step // 2 + below) // step.clamp_min(1)).clamp(max=255)
    new = torch.where(step > 0, table.gather(1, pixels), pixels)
    return new.to(torch.uint8).view_as(images)


def sheared(images: Tensor, angle: Tensor, along_rows: Tensor) -> Tensor:
    """Sheared by `angle` in radians: rows, or columns, are shifted against each other."""
    slope, one = angle.tan(), torch.ones_like(angle)
    return _mapped(images, one, torch.where(along_rows, slope, 0), torch.where(along_rows, 0, slope), one)


def rotated(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotated counter-clockwise."""
    cos, sin = degrees.deg2rad().cos(), degrees.deg2rad().sin()
    return _mapped(images, cos, -sin, sin, cos)


def _blended(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """other + factor * (image - other), rounded down."""
    return (other + factor * (images.float() - other)).clamp(0, 255).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    """[N, 1, H, W]: the luma of ITU-R 601, rounded, in integers."""
    if images.shape[1] != 3:
        return images.int()
    red, green, blue = images.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16)[:, None]


def _sign(uniform: Tensor) -> Tensor:
    return torch.where(uniform < 0.5, -1.0, 1.0).double()


def _window(size: int, smaller: Tensor, start: Tensor, target: Tensor) -> Tensor:
    """[N, size]: which old place each new place shows, or -1 for none."""
    source, shift = integers(start, smaller + 1), integers(target, smaller + 1)
    place = torch.arange(size, device=smaller.device) - shift[:, None]
    inside = (place >= 0) & (place < size - smaller[:, None])
    return torch.where(inside, place + source[:, None], -1)


def _between(size: int, start: Tensor, length: Tensor) -> Tensor:
    place = torch.arange(size, device=start.device) - start[:, None]
    return (place >= 0) & (place < length[:, None])


def _mapped(images: Tensor, xx: Tensor, xy: Tensor, yx: Tensor, yy: Tensor) -> Tensor:
    """The pixel at (x, y) from the centre is the old one at (xx x + xy y, yx x + yy y), to the nearest."""
    height, width = images.shape[-2:]
    xx, xy, yx, yy = (number.view(-1, 1, 1) for number in (xx, xy, yx, yy))
    x = (torch.arange(width, device=images.device) + 0.5 - width / 2).double()
    y = (torch.arange(height, device=images.device) + 0.5 - height / 2).double()[:, None]
    columns, rows = (xx * x + xy * y + width / 2).floor(), (yx * x + yy * y + height / 2).floor()
    return _picked(images, rows.long(), columns.long())


def _picked(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels at these rows and columns, [N, H, W] or broadcast to it, and black outside the image."""
    height, width = images.shape[-2:]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    places = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).flatten(1)[:, None]
    pixels = images.flatten(2).gather(2, places.expand(-1, images.shape[1], -1))
    return pixels.view_as(images).masked_fill(~inside[:, None], 0)
