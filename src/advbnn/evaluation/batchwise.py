"""Long work on a data set, batch by batch: shared among processes, resumed where it stopped, with progress."""

import functools
import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from advbnn.data.augment import to_float
from advbnn.data.imageset import Examples, row_numbers
from advbnn.distributed import world
from advbnn.files import write_atomically
from advbnn.progress import ProgressBar

T = TypeVar("T")

_SECONDS = "seconds"


class Batch:
    """One batch of the work, and what is kept of its parts should it be interrupted.

    Args:
        number: which one.
        folder: where finished parts are kept; nowhere when None.
        report: is told what is under way: the name of a part that is begun, and how much of an attack is done.

    Attributes:
        number: which one.
        earlier: the seconds that the parts took which were found there.
    """

    def __init__(
        self, number: int, folder: Path | None = None, report: Callable[[str], None] = lambda name: None
    ) -> None:
        self.number, self.earlier = number, 0.0
        self._folder, self._report, self._part = folder, report, ""

    def part(self, name: str, inputs: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gives; if that was made of the same inputs before an interruption, what it gave then.

        Args:
            name: tells this part from the others of the batch.
            inputs: what it is made of.
            make: makes it.
        """
        self._part = name
        self._report(name)
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
        """Told by an attack on the batch which share of it is done; `seed` names it if no part has."""
        self._report(f"{self._part or f'seed {seed}'}, {share:.0%}")


Work = Callable[[Tensor, Tensor, Batch], dict[str, Tensor]]
"""Given a batch's inputs, labels and the batch itself, its results: tensors with one row an example."""


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
        store: a folder that belongs to exactly this work. Each batch is written there when it is done, as are its
            parts until then, and found there when the work is started again.
        description: shown with the progress and the time left; nothing is shown when None.
    """
    chosen = torch.arange(len(data)) if rows is None else row_numbers(rows, len(data))
    batches = list(chosen.split(batch_size))
    team = world()
    own = range(team.rank, len(batches), team.size)
    parts = {number: part for number in own if (part := _read(_file(store, number))) is not None}
    missing = [number for number in own if number not in parts]
    with ProgressBar(description if team.leads else None, "batches") as bar:
        bar.update(len(parts), len(own))
        for number, (x, y) in zip(missing, data.gather([batches[number] for number in missing]), strict=True):
            started, file = time.perf_counter(), _file(store, number)
            batch = Batch(number, file and file.with_suffix(""), functools.partial(bar.update, len(parts), len(own)))
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
    """The value that each process has, in the order of their ranks, for all of them."""
    size = world().size
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
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
        with safe_open(file, "pt") as kept:
            return {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError:
        return None  # torn by something stronger than a kill; it is done again


def _write(file: Path, tensors: dict[str, Tensor]) -> None:
    write_atomically(file, save({name: t.contiguous() for name, t in tensors.items()}))


def _digest(name: str, inputs: Tensor) -> str:
    values = inputs.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(
        f"{name} {inputs.dtype} {tuple(inputs.shape)}".encode() + values.numpy().tobytes()
    ).hexdigest()
