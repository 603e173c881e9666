"""Training, validation and test sets that belong together."""

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from advbnn.data.imageset import Examples
from advbnn.errors import ArgumentError

Set = TypeVar("Set", bound=Examples)


@dataclass(frozen=True, eq=False)
class Splits(Generic[Set]):
    """A training and a test set of the same classes and shape, and optionally a validation set."""

    train: Set
    test: Set
    validation: Set | None = None

    def __post_init__(self) -> None:
        for part in (self.test, self.validation):
            if part is not None and (part.classes, part.shape) != (self.train.classes, self.train.shape):
                sizes = f"{len(self.train.classes)} and {len(part.classes)}, {self.train.shape} and {part.shape}"
                raise ArgumentError(f"the sets must have the same class names in order and the same shape, got {sizes}")

    def to(self, device: torch.device | str) -> "Splits[Set]":
        """Every set on another device."""
        validation = None if self.validation is None else self.validation.to(device)
        return Splits(self.train.to(device), self.test.to(device), validation)

    def split_validation(self, *, fraction: float = 0.0, count: int = 0, seed: int = 0) -> "Splits[Set]":
        """Takes a fraction, or a count, of the training set as the validation set; the test set is never touched.

        Stratified: classes keep their shares to within one image. The same seed takes the same examples.
        """
        total = len(self.train)
        if bool(fraction) == bool(count):
            raise ArgumentError(f"give either fraction or count, got fraction={fraction}, count={count}")
        if self.validation is not None:
            raise ArgumentError("there is already a validation set; split the original training set instead")
        taken = count or round(fraction * total)
        if not 0 < taken < total:
            given = f"fraction={fraction}, count={count}"
            raise ArgumentError(f"{given} takes {taken} of {total} training examples; expected 1 to {total - 1}")
        chosen = _stratified(self.train.targets.cpu(), taken, seed)
        rest = torch.ones(total, dtype=torch.bool).index_fill(0, chosen, False).nonzero().squeeze(1)
        return replace(self, train=self.train.subset(rest), validation=self.train.subset(chosen))


def _stratified(targets: Tensor, count: int, seed: int) -> Tensor:
    """`count` rows in ascending order: evenly spaced over the classes laid end to end, random within each."""
    total = len(targets)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    if targets.is_floating_point():
        return order[:count].sort().values
    by_class = order[targets[order].argsort(stable=True)]
    evenly = (2 * torch.arange(count) + 1) * total // (2 * count)
    return by_class[evenly].sort().values
