"""Images that do not fit into memory: read from disk, by worker processes, while the device works."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from advbnn.data.errors import DataError
from advbnn.data.folder import Listing, each_split
from advbnn.data.image import decode, recipe, summary
from advbnn.data.imageset import row_numbers, subset_name
from advbnn.data.progress import progress
from advbnn.data.splits import Splits


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
            raise ValueError(
                f"expected size >= 1 and workers >= 0, got size={self.size}, workers={self.workers}"
            )

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
        return f"FolderStream({self.name!r}: {len(self)} of {size}, {len(self.classes)} classes, on {self.device})"

    def to(self, device: torch.device | str) -> "FolderStream":
        """The same images, delivered on another device."""
        return replace(self, device=torch.device(device))

    def subset(self, indices: Sequence[int] | Tensor) -> "FolderStream":
        """The chosen images, in the given order."""
        rows = row_numbers(indices, len(self)).tolist()
        return replace(
            self, listing=self.listing.subset(rows), name=subset_name(self.name, len(rows), len(self))
        )

    def fingerprint(self) -> str:
        """SHA-256 of the files' names and sizes and of how they are decoded (their contents are not read)."""
        return hashlib.sha256(f"{self.listing.fingerprint()} {recipe(self.size)}".encode()).hexdigest()

    def gather(self, rows: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """For each tensor of row numbers, the images, uint8, and their labels, decoded ahead of their use."""
        batches = [chosen.tolist() for chosen in rows]
        loader = DataLoader(
            _Files(self.listing.paths(), self.size),
            batch_sampler=batches,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # without one of its own it would draw from the caller's stream
        )
        for images, chosen in zip(loader, batches, strict=True):
            yield images.to(self.device, non_blocking=True), self.targets[chosen].to(self.device)

    def check(self) -> None:
        """Decodes every image once and raises one error about all that are unreadable."""
        files = _Problems(self.listing.paths(), self.size)
        loader = DataLoader(files, batch_size=None, num_workers=self.workers, generator=torch.Generator())
        problems: list[str] = []
        with progress(f"{self.name}: checking {self.listing.folder.name}", "images") as report:
            for done, problem in enumerate(loader, start=1):
                problems += [problem] * bool(problem)
                report(done, len(self))
        if problems:
            raise DataError(summary(problems))


@dataclass(frozen=True)
class _Files(Dataset[Tensor]):
    paths: list[Path]
    size: int

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Tensor:
        return torch.from_numpy(decode(self.paths[row], self.size).copy())


@dataclass(frozen=True)
class _Problems(Dataset[str]):
    paths: list[Path]
    size: int

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> str:
        try:
            decode(self.paths[row], self.size)
        except DataError as error:
            return str(error)
        return ""


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
