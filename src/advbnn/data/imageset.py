"""Examples in memory, on the device that trains: images, or any pair of tensors."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from advbnn.errors import ArgumentError, ArgumentTypeError, DataError, positive_whole, shown
from advbnn.modules import tensor_bytes


class Examples(ABC):
    """What batches are drawn from: an `ImageSet` or a `TensorSet`.

    Attributes:
        targets: class indices (int64, [N]) or regression targets (floating point, [N, ...]).
        classes: the class names in label order; empty for regression.
        name: which set this is, for records.
    """

    targets: Tensor
    classes: tuple[str, ...]
    name: str

    @abstractmethod
    def tensors(self) -> tuple[Tensor, Tensor]:
        """The inputs as stored and the targets, one row per example."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))  # a list would compare unequal to a tuple
        (inputs, targets), name, count = self.tensors(), self.name, len(self.classes)
        _check_tensors(name, inputs=inputs, targets=targets)
        if 0 in inputs.shape or targets.ndim == 0 or len(targets) != len(inputs):
            shapes = f"inputs of shape {list(inputs.shape)}, targets of shape {list(targets.shape)}"
            raise ArgumentError(f"{name}: {shapes}; expected one target per input, and no dimension of 0")
        for what, values in (("inputs", inputs), ("targets", targets)):
            if values.is_floating_point() and not bool(values.isfinite().all()):
                raise ArgumentError(f"{name}: {what} contain NaN or infinity; remove those rows")
        if targets.is_floating_point():
            if count:
                raise ArgumentError(f"{name}: {count} classes with floating-point targets; use targets.long()")
            return
        if targets.dtype != torch.int64 or targets.ndim != 1:
            got = f"{targets.dtype} of shape {list(targets.shape)}"
            remedy = (
                "labels.long()"
                if targets.ndim == 1
                else "labels.squeeze(1)"
                if targets.shape[1] == 1
                else "labels.argmax(1)"
            )
            raise ArgumentTypeError(f"{name}: class labels must be int64 of shape [N], got {got}; use {remedy}")
        outside = ((targets < 0) | (targets >= count)).nonzero()
        if len(outside):
            label, row = int(targets[outside[0]]), int(outside[0])
            raise ArgumentError(f"{name}: label {label} of example {row} is out of range: expected 0..{count - 1}")

    def _with(self, inputs: Tensor, targets: Tensor, name: str) -> Self:
        return type(self)(inputs, targets, self.classes, name)  # type: ignore[call-arg]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width) for images."""
        return tuple(self.tensors()[0].shape[1:])

    @property
    def device(self) -> torch.device:
        """Where batches are delivered."""
        return self.tensors()[0].device

    def __len__(self) -> int:
        return self.tensors()[0].shape[0]

    def __repr__(self) -> str:
        task = f"{len(self.classes)} classes" if self.classes else "regression"
        size = "x".join(map(str, self.shape))
        return f"{type(self).__name__}({self.name!r}: {len(self)} of {size}, {task}, on {self.device})"

    def to(self, device: torch.device | str) -> Self:
        """The same examples on another device; nothing is copied if they are there already."""
        inputs, targets = self.tensors()
        return self._with(inputs.to(device), targets.to(device), self.name)

    def subset(self, indices: Sequence[int] | Tensor) -> Self:
        """The chosen rows, by number in the given order or by mask; the name says that they are a part."""
        rows = row_numbers(indices, len(self)).to(self.device)
        inputs, targets = self.tensors()
        # a number measured on a part must not pass for one measured on all
        name = self.name if len(rows) == len(self) else f"{self.name}[{len(rows)} of {len(self)}]"
        return self._with(inputs[rows], targets[rows], name)

    def fingerprint(self) -> str:
        """SHA-256 of the class names and of every value with its type and shape; the name does not count."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for tensor in self.tensors():
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor_bytes(tensor))
        return digest.hexdigest()

    def gather(self, rows: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """For each tensor of row numbers, the inputs as stored and the targets."""
        inputs, targets = self.tensors()
        rows = list(rows)
        if not rows:
            return
        on_device = torch.cat(rows).to(self.device)  # one transfer instead of one per batch
        for chosen in on_device.split([len(batch) for batch in rows]):
            yield inputs[chosen], targets[chosen]


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet(Examples):
    """Images, uint8 [N, channels, height, width], with class indices as labels, int64 [N].

    Batches are delivered in [0, 1], without further normalisation.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ArgumentTypeError(
                f"{self.name}: images must be uint8 of shape [N, channels, height, width], got {self.images.dtype} of "
                f"shape {list(self.images.shape)}; from_tensors takes floating-point inputs of any shape"
            )

    @property
    def targets(self) -> Tensor:  # type: ignore[override]
        return self.labels

    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.images, self.labels


@dataclass(frozen=True, eq=False, repr=False)
class TensorSet(Examples):
    """Any finite floating-point inputs [N, ...] with any targets, delivered as stored."""

    inputs: Tensor
    targets: Tensor
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.inputs.is_floating_point() or self.inputs.ndim < 2:
            got = f"{self.inputs.dtype} of shape {list(self.inputs.shape)}"
            raise ArgumentTypeError(f"{self.name}: inputs must be floating point of shape [N, ...], got {got}")

    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.inputs, self.targets


def from_tensors(
    inputs: Tensor, targets: Tensor, *, classes: Sequence[str] | int | None = None, name: str = "tensors"
) -> ImageSet | TensorSet:
    """Examples from any pair of tensors.

    uint8 images with integer labels become an `ImageSet`. Floating-point inputs become a `TensorSet` and are delivered
    unchanged. Floating-point targets mean regression.

    Args:
        inputs: uint8 images [N, channels, height, width], or floating point [N, ...]. Images (four dimensions with
            integer labels) must lie in [0, 1], as all attacks assume.
        targets: integer class indices [N], or floating-point regression targets [N, ...].
        classes: the class names or their number; taken from the largest label if None.
        name: which set this is, for records.
    """
    _check_tensors(name, inputs=inputs, targets=targets)
    if targets.is_floating_point():
        if classes is not None:
            raise ArgumentError(f"{name}: classes={classes!r} with floating-point targets; use targets.long()")
        return TensorSet(inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs, targets, (), name)
    labels = targets.long()
    names = class_names(name, labels, classes)
    if inputs.dtype == torch.uint8:
        return ImageSet(inputs, labels, names, name)
    check_pixels(name, inputs)
    return TensorSet(inputs, labels, names, name)


def check_pixels(name: str, inputs: Tensor) -> None:
    """Refuse floating-point images outside of [0, 1]."""
    if inputs.ndim == 4 and inputs.numel() and (float(inputs.min()) < 0 or float(inputs.max()) > 1):
        raise DataError(
            f"{name}: floating-point images must lie in [0, 1], got [{float(inputs.min()):g}, "
            f"{float(inputs.max()):g}]; divide by 255, or move a mean-and-std normalisation into the model"
        )


def row_numbers(indices: Sequence[int] | Tensor | None, total: int, argument: str = "indices") -> Tensor:
    """The indices, or the True rows of a mask, as int64 on the CPU; an error if one is not a row of `total`.

    All rows if there are no indices.
    """
    if indices is None:
        return torch.arange(total)
    try:
        rows = torch.as_tensor(indices).cpu()
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(f"{argument} must be a list of row numbers or a mask, got {shown(indices)}") from None
    if rows.dtype == torch.bool:
        if rows.shape != (total,):
            got = f"shape {list(rows.shape)}"
            raise ArgumentError(f"{argument}, as a mask, must have one bool for each of the {total} rows, got {got}")
        rows = rows.nonzero().squeeze(1)
    if rows.ndim != 1 or not len(rows):
        raise ArgumentError(f"{argument} must be a non-empty list of row numbers, got shape {list(rows.shape)}")
    if rows.is_floating_point():
        raise ArgumentTypeError(f"{argument} must be integers or a mask of bools, got {rows.dtype}; use .long()")
    rows = rows.long()
    if int(rows.min()) < 0 or int(rows.max()) >= total:
        raise ArgumentError(f"{argument} must lie in 0..{total - 1}, got {int(rows.min())}..{int(rows.max())}")
    return rows


def class_names(name: str, labels: Tensor, classes: Sequence[str] | int | None) -> tuple[str, ...]:
    """The names of classes, of which only the number may be given; by default up to the largest label."""
    if isinstance(classes, Iterable) and getattr(classes, "ndim", None) != 0:  # a tensor of no dimension is a number
        return tuple(map(str, classes))
    if classes is None:
        count = int(labels.max()) + 1 if labels.numel() else 0
    else:
        count = positive_whole(f"{name}: classes, unless it is a list of names,", classes)
    return tuple(map(str, range(count)))


def _check_tensors(name: str, **given: object) -> None:
    for argument, value in given.items():
        if not isinstance(value, Tensor):
            got = type(value).__name__
            raise ArgumentTypeError(f"{name}: {argument} must be a tensor, got {got}; use torch.as_tensor")
