"""Batches as a pure function of seed, epoch and step."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from advbnn.data.augment import Augmentation, augment, to_float
from advbnn.data.imageset import Examples
from advbnn.errors import ArgumentError, positive_whole

_AUGMENTED = 2048
"""Images that are augmented together."""


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
        if self.augmentations and len(self.examples.shape) != 3:
            raise ArgumentError(
                f"augmentations need images, but inputs of {self.examples.name!r} have shape {self.examples.shape}"
            )

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
        order, uniform = self._draw(epoch)
        # several batches at a time, since an augmentation of many small operations takes hardly longer for them;
        # always the same ones together, so that a resumed epoch has the same images to the last bit
        together = max(1, _AUGMENTED // self.batch_size)
        skipped = start_step % together
        first = start_step - skipped
        rows = _grouped(self._shards(order, first), together)
        numbers = _grouped(self._shards(uniform.to(self.examples.device), first), together)  # one transfer an epoch
        gathered = self.examples.gather([torch.cat(group) for group in rows])
        for (inputs, targets), group, drawn in zip(gathered, rows, numbers, strict=True):
            images, sizes = to_float(augment(inputs, self.augmentations, torch.cat(drawn))), [len(r) for r in group]
            yield from list(zip(images.split(sizes), targets.split(sizes), strict=True))[skipped:]
            skipped = 0

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor]:
        """The order of an epoch, and the random numbers for the augmentation at each position."""
        key = hashlib.blake2b(f"batches {self.seed} {epoch}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key, "big", signed=True))
        total = len(self.examples)
        order = torch.randperm(total, generator=generator) if self.shuffle else torch.arange(total)
        numbers = sum(augmentation.numbers for augmentation in self.augmentations)
        return order, torch.rand(total, numbers, generator=generator)

    def _shards(self, values: Tensor, start_step: int) -> list[Tensor]:
        return [step[self.rank :: self.world] for step in values.split(self.batch_size)[start_step : len(self)]]


def _grouped(shards: list[Tensor], together: int) -> list[list[Tensor]]:
    return [shards[begin : begin + together] for begin in range(0, len(shards), together)]
