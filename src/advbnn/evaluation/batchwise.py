"""Long computations on a data set, batch by batch: distributed over processes, resumable, with progress."""

import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from advbnn.data.augment import to_float
from advbnn.data.imageset import Examples, row_numbers
from advbnn.display.progress import ProgressBar
from advbnn.errors import FileError
from advbnn.machine.files import write_atomically
from advbnn.machine.processes import world
from advbnn.modules import tensor_bytes

T = TypeVar("T")

_SECONDS = "seconds"


class Batch:
    """One batch, whose finished parts are kept in `folder` until it is complete; nowhere when None.

    `report` is called with the share of the batch that is done, and what is under way: the name of a part, and the
    progress of an attack. `earlier` is the time, in seconds, that the parts read from disk took when they were made.
    """

    def __init__(
        self, number: int, folder: Path | None = None, report: Callable[[float, str], None] = lambda done, name: None
    ) -> None:
        self.number, self.earlier = number, 0.0
        self._folder, self._report, self._part = folder, report, ""
        self._done = self._share = 0.0

    def part(self, name: str, inputs: Tensor, make: Callable[[], Tensor], share: float = 0.0) -> Tensor:
        """The result of `make`, read from disk if it was computed from the same inputs before an interruption.

        `share` is about how much of the work of the batch it is.
        """
        self._part, self._done, self._share = name, self._done + self._share, share
        self._report(self._done, name)
        if self._folder is None:
            return make()
        file = self._folder / f"{_digest(name, inputs)}.safetensors"
        kept = _read(file)
        if kept is not None:
            self.earlier += kept[_SECONDS].item()
            return kept["made"].to(inputs.device)
        started = time.perf_counter()
        made = make().detach()
        _write(file, {"made": made.cpu(), _SECONDS: _since(started)})
        return made

    def attacked(self, share: float, seed: int) -> None:
        """Reports the fraction of an attack that is done, under the name of its part or else its seed."""
        self._report(self._done + share * self._share, f"{self._part or f'seed {seed}'}, {share:.0%}")


Work = Callable[[Tensor, Tensor, Batch], dict[str, Tensor]]
"""Maps a batch's inputs, labels and the batch itself to results: tensors with one row per example."""


class Results(NamedTuple):
    """The results of all batches on the CPU, one row per example in the order of the data; and the time spent."""

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

    Under `torch.distributed` process r of w computes batches r, r + w, r + 2w, ..., and every process gets all
    results. The batches do not depend on the number of processes, so neither do the results.

    Args:
        work: called once per batch, with images in [0, 1].
        rows: the examples to use, in this order; all when None.
        device: where to move the inputs; where the data is when None.
        store: a folder for this work only. Finished batches, and finished parts of a batch, are written there and
            read when the work is started again.
        description: shown with the progress and the time left; nothing is shown when None.
    """
    batches = list(row_numbers(rows, len(data)).split(batch_size))
    team = world()
    own = range(team.rank, len(batches), team.size)
    parts = {number: part for number in own if (part := _read(_file(store, number))) is not None}
    missing = [number for number in own if number not in parts]
    with ProgressBar(description if team.leads else None, "batches") as bar:
        bar.update(len(parts), len(own))
        for number, (x, y) in zip(missing, data.gather([batches[number] for number in missing]), strict=True):
            started, file = time.perf_counter(), _file(store, number)
            before = len(parts)

            def report(done: float, name: str, before: int = before) -> None:
                bar.update(before + min(done, 0.99), len(own), name)

            batch = Batch(number, file and file.with_suffix(""), report)
            part = {name: tensor.cpu() for name, tensor in work(to_float(x.to(device)), y.to(device), batch).items()}
            part[_SECONDS] = batch.earlier + _since(started)
            if file is not None:
                _write(file, part)
                shutil.rmtree(file.with_suffix(""), ignore_errors=True)
            parts[number] = part
            bar.update(len(parts), len(own), note="")
    for others in gather(parts):
        parts |= others
    seconds = sum(part.pop(_SECONDS).item() for part in parts.values())
    ordered = [parts[number] for number in range(len(batches))]
    return Results({name: torch.cat([part[name] for part in ordered]) for name in ordered[0]}, seconds)


def gather(value: T) -> list[T]:
    """The values of all processes, in the order of their ranks."""
    values: list[Any] = [value] * world().size
    if len(values) > 1:
        torch.distributed.all_gather_object(values, value)
    return values


def _file(store: Path | None, number: int) -> Path | None:
    return None if store is None else store / f"batch-{number:06d}.safetensors"


def _since(started: float) -> Tensor:
    return torch.tensor(time.perf_counter() - started, dtype=torch.float64)


def _read(file: Path | None) -> dict[str, Tensor] | None:
    if file is None or not file.exists():
        return None
    try:
        return load_file(file)
    except SafetensorError:
        return None  # a damaged file is computed again


def _write(file: Path, tensors: dict[str, Tensor]) -> None:
    try:
        write_atomically(file, save({name: t.contiguous() for name, t in tensors.items()}))
    except FileError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        # another process has finished the same work and removed the folder: nothing has to be kept any more


def _digest(name: str, inputs: Tensor) -> str:
    about = f"{name} {inputs.dtype} {tuple(inputs.shape)}".encode()
    return hashlib.sha256(about + tensor_bytes(inputs)).hexdigest()
