"""Images that do not fit into memory: read from disk, by worker processes, while the device works."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from advbnn.data.folder import Listing, each_split
from advbnn.data.image import decode, recipe, summary
from advbnn.data.imageset import row_numbers, subset_name
from advbnn.data.splits import Splits
from advbnn.errors import ArgumentError, DataError
from advbnn.progress import progress

_CHECKED_AT_ONCE = 64


@dataclass(frozen=True, eq=False, repr=False)
class FolderStream:
    """The images of a listing, decoded to centred squares of one size whenever they are needed.

    Args:
        listing: the files and their labels.
        size: the pixels of a side.
        name: which set this is, for records.
        workers: processes that decode; 0 decodes in the process that asks.
        device: where batches are delivered.
    """

    listing: Listing
    size: int
    name: str
    workers: int = 4
    device: torch.device = torch.device("cpu")  # noqa: RUF009 (immutable)

    def __post_init__(self) -> None:
        if self.size < 1 or self.workers < 0:
            raise ArgumentError(f"expected size >= 1 and workers >= 0, got size={self.size}, workers={self.workers}")

    @property
    def classes(self) -> tuple[str, ...]:
        return self.listing.classes

    @property
    def shape(self) -> tuple[int, ...]:
        return (3, self.size, self.size)

    @cached_property
    def targets(self) -> Tensor:
        return torch.tensor(self.listing.labels)

    def __len__(self) -> int:
        return len(self.listing.files)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"FolderStream({self.name!r}: {len(self)} of {size}, {len(self.classes)} classes)"

    def to(self, device: torch.device | str) -> "FolderStream":
        """The same images, delivered on another device."""
        return replace(self, device=torch.device(device))

    def subset(self, indices: Sequence[int] | Tensor) -> "FolderStream":
        """The chosen images, in the given order."""
        rows = row_numbers(indices, len(self)).tolist()
        return replace(self, listing=self.listing.subset(rows), name=subset_name(self.name, len(rows), len(self)))

    def fingerprint(self) -> str:
        """SHA-256 of the files' names and sizes and of how they are decoded (their contents are not read)."""
        return hashlib.sha256(f"{self.listing.fingerprint()} {recipe(self.size)}".encode()).hexdigest()

    def gather(self, rows: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """For each tensor of row numbers, the images, uint8, and their labels, decoded ahead of their use."""
        batches = [chosen.tolist() for chosen in rows]
        for (images, problems), chosen in zip(self._decoded(batches), batches, strict=True):
            if problems:
                raise DataError(summary(problems))
            yield images.to(self.device, non_blocking=True), self.targets[chosen].to(self.device)

    def check(self) -> None:
        """Decodes every image once and raises one error about all that are unreadable."""
        starts = range(0, len(self), _CHECKED_AT_ONCE)
        batches = [list(range(start, min(start + _CHECKED_AT_ONCE, len(self)))) for start in starts]
        problems: list[str] = []
        done = 0
        with progress(f"{self.name}: checking {self.listing.folder.name}", "images") as report:
            for (_, found), rows in zip(self._decoded(batches), batches, strict=True):
                problems += found
                report(done := done + len(rows), len(self))
        if problems:
            raise DataError(summary(problems))

    def _decoded(self, batches: list[list[int]]) -> Iterable[tuple[Tensor, list[str]]]:
        return DataLoader(
            _Files(self.listing.paths(), self.size),
            batch_size=None,
            sampler=batches,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # without one of its own it would draw from the caller's stream
        )


@dataclass(frozen=True)
class _Files(Dataset[tuple[Tensor, list[str]]]):
    """Batches of decoded images, and what is wrong with the files.

    Problems are returned, because what a worker raises arrives wrapped in its traceback.
    """

    paths: list[Path]
    size: int

    def __getitem__(self, rows: list[int]) -> tuple[Tensor, list[str]]:
        images = torch.zeros(len(rows), 3, self.size, self.size, dtype=torch.uint8)
        problems = []
        for image, row in zip(images, rows, strict=True):
            try:
                image.numpy()[:] = decode(self.paths[row], self.size)
            except DataError as error:
                problems.append(str(error))
        return images, problems


def stream_folder(
    root: Path | str, *, size: int, workers: int = 4, name: str | None = None, check: bool = True
) -> Splits[FolderStream]:
    """An image folder read from disk while it is used, in place of `load_folder`.

    Args:
        root: the folder that holds the splits (see `load_folder`).
        size: make every image a centred square of this many pixels.
        workers: processes that decode.
        name: which set this is, for records; left out, the folder's name.
        check: decode everything once now, so that an unreadable image is known before training starts.
    """
    known_as = name or Path(root).resolve().name
    splits = each_split(root, lambda listing: FolderStream(listing, size, known_as, workers))
    if check:
        for part in (splits.train, splits.test, splits.validation):
            if part is not None:
                part.check()
    return splits
