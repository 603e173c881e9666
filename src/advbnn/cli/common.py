"""What the commands that evaluate runs share."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import typer

from advbnn.cli.options import file_to_write
from advbnn.data import Examples
from advbnn.distributed import World, joined
from advbnn.errors import ArgumentError, positive_whole
from advbnn.evaluation.records import Record
from advbnn.files import check_name
from advbnn.modules import usable_device
from advbnn.training.loading import Trained, load_trained

RECORDS = "records.json"


@contextmanager
def open_run(
    run: Path, *, device: str | None, limit: int | None, out: Path | None, last: bool = False, **options: Any
) -> Iterator[tuple[Trained, Examples, dict[str, Any], bool]]:
    """A run to be evaluated on its first `limit` test images; errors become one line.

    Yields:
        The run, its test set, the keyword arguments of an evaluation with the further `options`, and whether this
        process prints results.
    """
    with evaluation_processes(device) as (world, place):
        trained = load_trained(run, device=place, last=last)
        if not trained.finished and world.leads:
            typer.echo(f"warning: {run} is not finished; using its last checkpoint", err=True)
        if last and trained.config.defense.early_stopping is None:
            raise ArgumentError(f"{run} was trained without early stopping, to the last epoch; leave --last out")
        test = trained.load_data().test
        which = " (last)" if last else "" if trained.finished else f" (step {trained.step})"
        shared = {
            "rows": first_rows(test, limit),
            "label": label_of(run) + which,  # records of unfinished training do not stand for the finished network
            "out": out or file_to_write(run / RECORDS),
            "progress": True,
            "command": command_line(),
        }
        yield trained, test, shared | options, world.leads


@contextmanager
def evaluation_processes(device: str | None) -> Iterator[tuple[World, torch.device]]:
    """The processes of an evaluation and the device of this one; errors and Ctrl-C become one line."""
    try:
        with joined(device_or_first_gpu(device)) as team:
            yield team
    except KeyboardInterrupt:
        typer.echo("stopped; finished batches are kept, and the same command resumes", err=True)
        raise typer.Exit(130) from None


def device_or_first_gpu(device: str | None) -> str:
    """The given device if it exists; without one, the first GPU or the CPU."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return str(usable_device(device))


def refuse_missing(files: Sequence[Path]) -> None:
    """Refuses folders, and files that do not exist."""
    for path in files:
        if not path.is_file():
            is_folder = f"{path} is a folder; give the files in it"
            raise ArgumentError(is_folder if path.is_dir() else f"there is no such file: {path}")


def label_of(run: Path) -> str:
    """The label of a run in records: the name of its folder."""
    check_name(run, "RUN")
    return run.resolve().name


def first_rows(data: Examples, limit: int | None) -> range | None:
    """The first `limit` rows; None, which means all of them, without a limit."""
    return None if limit is None else range(min(positive_whole("limit", limit), len(data)))


def training_radius(trained: Trained, norm: str) -> float:
    """The radius of adversarial training of a run, in the norm of that training."""
    attack = trained.config.defense.attack
    if attack is None:
        raise ArgumentError(f"{trained.folder} was trained without an attack, so it has no radius; give --eps")
    if attack.threat.norm != norm:
        raise ArgumentError(f"--norm {norm} is not the norm of training, {attack.threat.norm}; give --eps")
    return attack.threat.eps


def command_line() -> str:
    """The current command as typed, however the program was started."""
    return shlex.join(["advbnn", *sys.argv[1:]])


def show(records: Sequence[Record]) -> None:
    """Prints accuracies as a table."""
    from rich.console import Console
    from rich.table import Table

    columns = {
        "model": [record.model.label for record in records],
        "attack": [record.name for record in records],
        "radius": ["" if r.threat is None else f"{r.threat.norm} {r.threat.eps:.4g}" for r in records],
        "varied": ["" if record.at is None else f"{record.curve} {record.at:g}" for record in records],
        "accuracy": [f"{record.accuracy:.2%}" for record in records],
        "95 % interval": [_range(*record.interval) for record in records],
        "over seeds": [_range(r.spread.min, r.spread.max) if len(r.seeds) > 1 else "" for r in records],
    }
    columns = {title: cells for title, cells in columns.items() if any(cells)}  # a terminal is narrow
    table = Table(*columns, box=None)
    for column in table.columns:
        column.no_wrap = True
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console = Console()
    console.print(table)
    first = records[0]
    samples = "the given number of" if first.curve == "ensemble" else first.samples
    console.print(
        f"{first.n:,} images of {first.data.name}; evaluation seeds: {len(first.seeds)}. The classifier averages "
        f"{samples} weight samples, which no attack has seen."
    )


def _range(low: float, high: float) -> str:
    return f"{100 * low:.1f} - {100 * high:.1f} %"
