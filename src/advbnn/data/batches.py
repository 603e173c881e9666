"""Batches as a pure function of seed, epoch and step."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from advbnn.data.augment import Augmentation, augment, to_float
from advbnn.data.cutmix import CutMix
from advbnn.data.imageset import Examples
from advbnn.errors import ArgumentError, positive_whole

Item = TypeVar("Item")

_AUGMENTED = 2048 * 3 * 32 * 32
"""Pixel values that are augmented together: 2,048 images of CIFAR-10."""


@dataclass(frozen=True)
class Batches:
    """The batches of any epoch, in order, from any step on.

    The order of an epoch and the random numbers of its augmentation are drawn on the CPU from `(seed, epoch)` alone.
    A run can therefore stop and resume exactly at any step, on any device, and torch's global random state is neither
    used nor changed.

    With `world` processes each takes every world-th example of the batch, starting at its `rank`. The shards of a step
    together are, example by example, the batch of a single process.

    Args:
        examples: an `ImageSet` or `TensorSet`, on the device where batches are needed.
        batch_size: examples per step, over all processes.
        seed: decides the order and the augmentation of every epoch.
        augmentations: applied to the images one after the other.
        cutmix: then mix each image with another of the epoch; targets are probabilities, [n, classes].
        shuffle: a new order in each epoch; otherwise the order of the examples.
        drop_last: leave out the last batch of an epoch if it is smaller than the others.
    """

    examples: Examples
    batch_size: int
    seed: int = 0
    augmentations: tuple[Augmentation, ...] = ()
    shuffle: bool = True
    drop_last: bool = False
    rank: int = 0
    world: int = 1
    cutmix: CutMix | None = None

    def __post_init__(self) -> None:
        positive_whole("batch_size", self.batch_size)
        if not 0 <= self.rank < self.world:
            raise ArgumentError(f"rank must lie in 0..world-1, got rank={self.rank} with world={self.world}")
        if self.batch_size % self.world:
            raise ArgumentError(f"batch_size={self.batch_size} must be a multiple of world={self.world}")
        if len(self) == 0:
            raise ArgumentError(
                f"batch_size={self.batch_size} with drop_last leaves no batch of {len(self.examples)} examples"
            )
        if self.size(len(self) - 1) < self.world:
            raise ArgumentError(
                f"the last batch of an epoch has {self.size(len(self) - 1)} examples for {self.world} "
                "processes; set drop_last or choose another batch_size"
            )
        if (self.augmentations or self.cutmix) and len(self.examples.shape) != 3:
            raise ArgumentError(
                f"augmentations need images, but inputs of {self.examples.name!r} have shape {self.examples.shape}"
            )
        if self.cutmix and not self.examples.classes:
            raise ArgumentError(f"cutmix needs class labels, and {self.examples.name!r} is for regression")

    def __len__(self) -> int:
        """The number of steps per epoch."""
        whole, rest = divmod(len(self.examples), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def size(self, step: int) -> int:
        """The number of examples in a step, over all processes."""
        return min(self.batch_size, len(self.examples) - step * self.batch_size)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The `(inputs, targets)` of this process for each step of an epoch, beginning at `start_step`.

        Images are float32 in [0, 1], other inputs unchanged.
        """
        if not 0 <= start_step <= len(self):
            raise ArgumentError(f"start_step must lie in 0..{len(self)}, the steps of an epoch, got {start_step}")
        return self._batches(epoch, start_step)

    def _batches(self, epoch: int, start_step: int) -> Iterator[tuple[Tensor, Tensor]]:
        # several batches at a time, since an augmentation of many small operations takes hardly longer for them;
        # always the same ones together, so that a resumed epoch has the same images to the last bit
        together = max(1, _AUGMENTED // (self.batch_size * math.prod(self.examples.shape)))
        skipped = start_step % together
        first = start_step - skipped
        draws = [self._augmented(draw, first, together) for draw in self._draw(epoch)]
        sizes = _grouped([len(shard) for shard in self._shards(torch.arange(len(self.examples)), first)], together)
        for parts, (inputs, targets, numbers), *other in zip(sizes, *draws, strict=True):
            if self.cutmix is not None:
                ((others, labels, _),) = other
                classes = len(self.examples.classes)
                inputs, targets = self.cutmix.apply(inputs, targets, others, labels, numbers, classes)
            yield from list(zip(to_float(inputs).split(parts), targets.split(parts), strict=True))[skipped:]
            skipped = 0

    def _augmented(
        self, draw: tuple[Tensor, Tensor], first: int, together: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Groups of augmented inputs with their targets and the numbers that are left."""
        order, uniform = draw
        rows = [torch.cat(group) for group in _grouped(self._shards(order, first), together)]
        on_device = uniform.to(self.examples.device)  # one transfer for the whole epoch
        numbers = [torch.cat(group) for group in _grouped(self._shards(on_device, first), together)]
        used = sum(augmentation.numbers for augmentation in self.augmentations)
        for (inputs, targets), drawn in zip(self.examples.gather(rows), numbers, strict=True):
            yield augment(inputs, self.augmentations, drawn[:, :used]), targets, drawn[:, used:]

    def _draw(self, epoch: int) -> list[tuple[Tensor, Tensor]]:
        """The order of an epoch and the random numbers at each position; with CutMix, also for the other images."""
        key = hashlib.blake2b(f"batches {self.seed} {epoch}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key, "big", signed=True))
        total = len(self.examples)
        numbers = sum(augmentation.numbers for augmentation in self.augmentations)
        numbers += 0 if self.cutmix is None else self.cutmix.numbers
        order = torch.randperm(total, generator=generator) if self.shuffle else torch.arange(total)
        draws = [(order, torch.rand(total, numbers, generator=generator))]
        if self.cutmix is not None:
            other = torch.randperm(total, generator=generator)
            draws.append((other, torch.rand(total, numbers, generator=generator)))
        return draws

    def _shards(self, values: Tensor, start_step: int) -> list[Tensor]:
        return [step[self.rank :: self.world] for step in values.split(self.batch_size)[start_step : len(self)]]


def _grouped(items: list[Item], together: int) -> list[list[Item]]:
    return [items[begin : begin + together] for begin in range(0, len(items), together)]
