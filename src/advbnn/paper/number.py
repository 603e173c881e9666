"""Accuracies with their uncertainty: by the choice of images, and by the spread over trainings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev

import torch
from torch import Tensor

from advbnn.evaluation.identity import DataIdentity, ranges
from advbnn.evaluation.intervals import clopper_pearson, paired_interval
from advbnn.evaluation.records import Record

# half of a 95 % interval in standard errors, by the number of trainings minus 1; a single one has no spread
_STUDENT = (0.0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Number:
    """An accuracy in %, the mean over the trainings of a defence, with its 95 % interval over the choice of images.

    `spread` is the standard deviation over trainings; `right`, if recorded, is for each image the share of trainings
    and seeds that classify it correctly.
    """

    mean: float
    low: float
    high: float
    images: int
    spread: float = 0.0
    trainings: int = 1
    data: DataIdentity | None = None
    right: Tensor | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Number":
        """The mean over records of the same measurement, one for each training."""
        values, data = [100 * record.accuracy for record in records], records[0].data
        low, high = (fmean(100 * record.interval[end] for record in records) for end in (0, 1))
        images = min(record.n for record in records)
        spread = stdev(values) if len(values) > 1 else 0.0
        known = all(record.outcomes and record.data == data for record in records)
        right = torch.stack([record.right for record in records]).mean(0) if known else None
        return cls(fmean(values), low, high, images, spread, len(values), data, right)

    def on(self, data: DataIdentity | None) -> "Number":
        """The accuracy on the first images only, if `data` is these and outcomes are known; else unchanged."""
        if self.right is None or self.data is None or data is None or data.n > self.images:
            return self
        if replace(self.data, n=data.n, rows=ranges(range(data.n))) != data or self.data.rows:
            return self
        right = self.right[: data.n]
        low = 100 * clopper_pearson(math.floor(right.sum().item()), data.n)[0]
        high = 100 * clopper_pearson(math.ceil(right.sum().item()), data.n)[1]
        return Number(100 * right.mean().item(), low, high, data.n, self.spread, self.trainings, data, right)

    @property
    def below(self) -> float:
        """The margin below the mean: over images, or over trainings if it is larger."""
        return max(self.mean - self.low, self.by_training)

    @property
    def above(self) -> float:
        """The margin above the mean."""
        return max(self.high - self.mean, self.by_training)

    @property
    def by_training(self) -> float:
        """Half of Student's 95 % interval over trainings."""
        return _STUDENT[min(self.trainings, len(_STUDENT)) - 1] * self.spread / math.sqrt(self.trainings)


def margin(a: Number, b: Number) -> float:
    """How much of the difference of two numbers, in points, may be chance: the reach of its 95 % interval towards 0.

    On the same images a paired interval is used, or the one over trainings if it is wider. On different images, or
    where only counts are recorded, Newcombe's interval is used, which is conservative for equal images.
    """
    upper, lower = (a, b) if a.mean >= b.mean else (b, a)
    if upper.right is None or lower.right is None or upper.data != lower.data:
        return math.hypot(upper.below, lower.above)
    least = 100 * paired_interval(upper.right, lower.right)[0]
    return max(upper.mean - lower.mean - least, math.hypot(upper.by_training, lower.by_training))
