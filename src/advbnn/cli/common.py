"""What the commands that judge finished runs share."""

import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import typer

from advbnn.cli.options import file_to_write
from advbnn.data import Examples
from advbnn.distributed import joined
from advbnn.errors import ArgumentError, CheckpointError, DivergedError, RunError
from advbnn.evaluation.accuracy import Options
from advbnn.evaluation.records import Record
from advbnn.training.loading import Trained, load_trained

RECORDS = "records.json"
"""Where in its folder the records of a run are."""


class Judged(NamedTuple):
    """A run that a command judges.

    Attributes:
        trained: its network.
        test: the images that it is judged on.
        options: of the evaluation, all of them.
        leads: whether this process is the one that shows what was found.
    """

    trained: Trained
    test: Examples
    options: Options
    leads: bool


@contextmanager
def judged(
    run: Path, device: str | None, limit: int | None, out: Path | None, how: Options, last: bool = False
) -> Iterator[Judged]:
    """A run on a device, to be judged on its first `limit` test images; what goes wrong is explained in one line.

    Args:
        run: the run folder.
        device: as for `device_or_first_gpu`.
        limit: as for `first_rows`.
        out: the file of records; that of the run when None.
        how: further options of the evaluation.
        last: as for `load_trained`; in records such a network is called "(last)".
    """
    with explaining_errors(), stopping_in_words(), joined(device_or_first_gpu(device)) as (world, place):
        trained = load_trained(run, device=place, last=last)
        if not trained.finished and world.leads:
            typer.echo(f"warning: {run} is not finished; this is about its last checkpoint", err=True)
        if last and trained.config.defense.early_stopping is None:
            raise ArgumentError(
                f"{run} was trained without early stopping, so that its weights are those of the last epoch; "
                "leave --last out"
            )
        records = out or file_to_write(run / RECORDS)
        test = trained.config.load_data().test
        options = Options(
            rows=first_rows(test, limit),
            label=f"{label_of(run)} (last)" if last else label_of(run),
            out=records,
            progress=True,
            command=command_line(),
        )
        yield Judged(trained, test, options | how, world.leads)


@contextmanager
def explaining_errors() -> Iterator[None]:
    """What a user can put right is said in one line, and the command ends with status 1; warnings are one line too."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: typer.echo(f"warning: {message}", err=True)
            yield
    except (ValueError, TypeError, RunError, CheckpointError, DivergedError, ImportError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


@contextmanager
def stopping_in_words() -> Iterator[None]:
    """Whoever stops an evaluation is told how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; finished batches are kept, and the same command goes on from there", err=True)
        raise typer.Exit(130) from None


def device_or_first_gpu(device: str | None) -> str:
    """The device asked for, if it is there; otherwise the first GPU if there is one."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        asked = torch.device(device)
    except RuntimeError:
        raise ArgumentError(f"device={device!r} is unknown: expected cpu, cuda, or one GPU such as cuda:1") from None
    count = torch.cuda.device_count()
    if asked.type == "cuda" and (asked.index or 0) >= count:
        there = f"the last GPU here is cuda:{count - 1}" if count else "torch finds no GPU here; use cpu"
        raise ArgumentError(f"device={device!r} does not exist: {there}")
    return device


def refuse_missing(files: Sequence[Path]) -> None:
    """Names the files that are not there."""
    for path in files:
        if path.is_dir():
            raise ArgumentError(f"{path} is a folder; name files in it")
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        raise ArgumentError(f"there is no such file: {', '.join(missing)}")


def label_of(run: Path) -> str:
    """What the network of a run is called in records: the name of its folder."""
    return run.resolve().name


def first_rows(data: Examples, limit: int | None) -> range | None:
    """The first `limit` rows; None, which is all of them, without a limit."""
    if limit is not None and limit < 1:
        raise ArgumentError(f"limit must be a number of images, at least 1, got {limit}")
    return None if limit is None else range(min(limit, len(data)))


def training_radius(trained: Trained) -> float:
    """The radius that a run was trained against."""
    attack = trained.config.defense.attack
    if attack is None:
        raise ArgumentError(f"{trained.folder} was not trained against an attack, so it has no radius; give --eps")
    return attack.threat.eps


def command_line() -> str:
    """This command, as it was typed, however the program was started."""
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
        "95 % interval": [_from_to(*record.interval) for record in records],
        "over seeds": [_from_to(r.spread.min, r.spread.max) if len(r.seeds) > 1 else "" for r in records],
    }
    shown = {title: cells for title, cells in columns.items() if any(cells)}  # a terminal is narrow
    table = Table(*shown, box=None)
    for column in table.columns:
        column.no_wrap = True
    for row in zip(*shown.values(), strict=True):
        table.add_row(*row)
    console = Console()
    console.print(table)
    first = records[0]
    console.print(
        f"{first.n:,} images of {first.data.name}; evaluation seeds: {len(first.seeds)}. The classifier is the mean of "
        f"{first.samples if first.curve != 'ensemble' else 'so many'} draws, which no attack has seen."
    )


def _from_to(low: float, high: float) -> str:
    return f"{100 * low:.1f} - {100 * high:.1f} %"
