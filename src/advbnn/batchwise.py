"""Long work on a data set, batch by batch: shared among processes, resumed where it stopped, with progress."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from advbnn.data.augment import to_float
from advbnn.data.imageset import Examples, row_numbers
from advbnn.data.progress import Report, progress
from advbnn.distributed import world
from advbnn.files import write_atomically

T = TypeVar("T")

Work = Callable[[Tensor, Tensor, int], dict[str, Tensor]]
"""Given a batch's inputs, labels and number, its results: tensors with one row an example."""

_SECONDS = "seconds"


class Results(NamedTuple):
    """The results of all batches, one row an example in the order of the data, on the CPU; and the time spent."""

    tensors: dict[str, Tensor]
    seconds: float


def batchwise(
    work: Work,
    data: Examples,
    *,
    batch_size: int,
    rows: Sequence[int] | Tensor | None = None,
    device: torch.device | None = None,
    store: Path | None = None,
    description: str | None = None,
) -> Results:
    """The results of `work` on every batch of `data`.

    Under `torch.distributed` process r of w does batches r, r + w, r + 2w, ..., and all of them get all results. What
    a batch is does not depend on the number of processes, so neither does the outcome.

    Args:
        work: is called once a batch.
        data: the examples; images are handed over in [0, 1].
        batch_size: examples in a batch.
        rows: the examples to use, in this order; all when None.
        device: where to bring them, as bytes if that is what they are; where the data is when None.
        store: a folder that belongs to exactly this work. Each batch is written there when it is done, and found
            there when the work is started again.
        description: shown with the progress and the time left; nothing is shown when None.
    """
    chosen = torch.arange(len(data)) if rows is None else row_numbers(rows, len(data))
    batches = list(chosen.split(batch_size))
    team = world()
    own = range(team.rank, len(batches), team.size)
    parts = {number: part for number in own if (part := _read(store, number)) is not None}
    missing = [number for number in own if number not in parts]
    with _progress(description if team.leads else None) as report:
        report(len(parts), len(own))
        for number, (x, y) in zip(missing, data.gather([batches[number] for number in missing]), strict=True):
            started = time.perf_counter()
            part = {name: tensor.cpu() for name, tensor in work(to_float(x.to(device)), y.to(device), number).items()}
            part[_SECONDS] = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
            _write(store, number, part)
            parts[number] = part
            report(len(parts), len(own))
    for others in gather(parts):
        parts |= others
    seconds = sum(part.pop(_SECONDS).item() for part in parts.values())
    ordered = [parts[number] for number in range(len(batches))]
    return Results({name: torch.cat([part[name] for part in ordered]) for name in ordered[0]}, seconds)


def gather(value: T) -> list[T]:
    """The value that each process has, in the order of their ranks, for all of them."""
    size = world().size
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    torch.distributed.all_gather_object(values, value)
    return values


@contextmanager
def _progress(description: str | None) -> Iterator[Report]:
    if description is None:
        yield lambda done, total: None
    else:
        with progress(description, "batches") as report:
            yield report


def _file(store: Path, number: int) -> Path:
    return store / f"batch-{number:06d}.safetensors"


def _read(store: Path | None, number: int) -> dict[str, Tensor] | None:
    if store is None or not _file(store, number).exists():
        return None
    try:
        with safe_open(_file(store, number), "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError:
        return None  # torn by something stronger than a kill; it is done again


def _write(store: Path | None, number: int, part: dict[str, Tensor]) -> None:
    if store is not None:
        write_atomically(_file(store, number), save({name: t.contiguous() for name, t in part.items()}))
