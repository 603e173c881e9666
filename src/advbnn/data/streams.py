"""Batches from a `DataLoader`, or from any iterable, in place of a training set in memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from advbnn.data.augment import to_float
from advbnn.data.imageset import Examples, check_pixels, class_names
from advbnn.errors import ArgumentError, ArgumentTypeError, DataError
from advbnn.randomness import derive_seed, seeded_globally

_PAIRS = "every batch must be a pair of tensors, inputs and targets"


@dataclass(frozen=True, eq=False, repr=False)
class Stream(Examples):
    """A training set that is known by its first batch and the sizes of all; made by `stream`.

    Attributes:
        loader: what delivers the batches of an epoch, each time it is iterated.
        inputs: of the first batch, and `targets`.
        sizes: the number of examples in each batch of an epoch; `examples` is N, the size of the training set.
    """

    loader: Iterable[Any]
    inputs: Tensor
    targets: Tensor
    classes: tuple[str, ...]
    name: str
    sizes: tuple[int, ...]
    examples: int

    def tensors(self) -> tuple[Tensor, Tensor]:
        """The first batch."""
        return self.inputs, self.targets

    def __len__(self) -> int:
        return self.examples

    def to(self, device: torch.device | str) -> Self:
        """The same stream, delivered on another device."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def subset(self, indices: Sequence[int] | Tensor) -> Self:
        """Not possible: the examples are not in memory."""
        raise ArgumentError(
            f"{self.name}: a part of a stream of batches cannot be held out, as for early_stopping; give it as the "
            "validation set: Splits(stream(loader), test, validation)"
        )

    def fingerprint(self) -> str:
        """Says that the examples are not known in advance."""
        return "not known: batches come from a loader"


def stream(
    loader: Iterable[Any], *, classes: Sequence[str] | int | None = None, name: str | None = None, seed: int = 0
) -> Stream:
    """A `DataLoader`, or any iterable of batches (inputs, targets), as a training set.

    The order and the random numbers of a batch follow from torch's, NumPy's and Python's global generators, which are
    seeded for every step. A loader with a generator of its own, or with worker processes that use NumPy's, draws other
    batches after a resumption.

    Args:
        loader: delivers the same number of batches each time it is iterated. Images are uint8, or floating point in
            [0, 1]. What is no `DataLoader` is iterated once in advance, to count.
        classes: the class names or their number; from `loader.dataset.classes`, or the largest label of the first
            batch, if None.
        name: which set this is, for records; the class of the dataset by default.
        seed: of the first batch, which is drawn in advance.
    """
    if isinstance(loader, Iterator) or not isinstance(loader, Iterable):
        came = f"got {type(loader).__name__}"
        raise ArgumentTypeError(f"data must deliver its batches anew for every epoch: a DataLoader or a list; {came}")
    dataset = getattr(loader, "dataset", loader)
    name = name or type(dataset).__name__
    with seeded_globally(derive_seed(seed, "loader")):
        first = next(iter(loader), None)
        if first is None:
            raise DataError(f"{name} delivers no batch; check the loader")
        sizes, examples = _counted(loader, name)
    inputs, targets = _pair(first, name, 0)
    names: tuple[str, ...] = ()
    if not targets.is_floating_point():
        while classes is None and dataset is not None:  # a Subset has the classes of its dataset
            classes, dataset = getattr(dataset, "classes", None), getattr(dataset, "dataset", None)
        names = class_names(name, targets, classes)
        check_pixels(name, inputs)
    return Stream(loader, inputs, targets, names, name, sizes, examples)


@dataclass(frozen=True)
class StreamBatches:
    """The batches of any epoch of a stream, as `Batches` delivers those of a set in memory."""

    examples: Stream
    seed: int = 0
    world: int = 1

    @property
    def batch_size(self) -> int:
        """The size of the largest batch."""
        return max(self.examples.sizes)

    def __len__(self) -> int:
        """The number of steps per epoch."""
        return len(self.examples.sizes)

    def size(self, step: int) -> int:
        """The number of examples in a step."""
        return self.examples.sizes[step]

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from a step on; those before it are loaded and skipped."""
        source, seed = self.examples, derive_seed(self.seed, "loader", epoch)
        sampler: Any = getattr(source.loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        with seeded_globally(seed):
            batches = iter(source.loader)
        for step in range(len(self)):
            with seeded_globally(derive_seed(seed, "step", step)):
                batch = next(batches, None)
            if batch is None:
                problem = f"delivers {step} batches in epoch {epoch + 1}, and {len(self)} before"
                raise DataError(f"{source.name} {problem}; it must deliver the same number in every epoch")
            inputs, targets = _pair(batch, source.name, step)
            if source.classes and not 0 <= int(targets.min()) <= int(targets.max()) < len(source.classes):
                found, last = f"{int(targets.min())}..{int(targets.max())}", len(source.classes) - 1
                problem = f"labels must lie in 0..{last}, got {found} in batch {step}"
                raise DataError(f"{source.name}: {problem}; give the number of classes, stream(loader, classes=...)")
            if step >= start_step:
                yield inputs.to(source.device, non_blocking=True), targets.to(source.device, non_blocking=True)


def _pair(batch: Any, name: str, number: int) -> tuple[Tensor, Tensor]:
    if not (isinstance(batch, Sequence) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)):
        kinds = [type(part).__name__ for part in batch] if isinstance(batch, Sequence) else type(batch).__name__
        raise ArgumentTypeError(f"{name}: {_PAIRS}, got {kinds} in batch {number}; use a collate function")
    inputs, targets = batch
    if not len(inputs) or len(inputs) != len(targets):
        raise DataError(f"{name}: {_PAIRS}, got {len(inputs)} and {len(targets)} examples in batch {number}")
    return to_float(inputs), targets if targets.is_floating_point() else targets.long()


def _counted(loader: Iterable[Any], name: str) -> tuple[tuple[int, ...], int]:
    """The sizes of the batches and the number of examples."""
    if isinstance(loader, DataLoader) and loader.batch_size and not isinstance(loader.dataset, IterableDataset):
        total, size = len(loader.sampler), loader.batch_size  # type: ignore[arg-type]
        whole, rest = divmod(total, size)
        return (size,) * whole + ((rest,) if rest and not loader.drop_last else ()), total
    sizes = tuple(len(_pair(batch, name, number)[0]) for number, batch in enumerate(loader))
    return sizes, sum(sizes)
