"""What the commands that judge finished runs share."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import typer

from advbnn.checkpoint import CheckpointError
from advbnn.data import Examples
from advbnn.distributed import joined
from advbnn.evaluate import Options
from advbnn.records import Record
from advbnn.runs import RunError
from advbnn.trained import Trained, load_trained

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
def judged(run: Path, device: str | None, limit: int | None, out: Path | None, how: Options) -> Iterator[Judged]:
    """A run on a device, to be judged on its first `limit` test images; what goes wrong is explained in one line.

    Args:
        run: the run folder.
        device: as for `device_or_first_gpu`.
        limit: as for `first_rows`.
        out: the file of records; that of the run when None.
        how: further options of the evaluation.
    """
    with explaining_errors(), joined(device_or_first_gpu(device)) as (world, place):
        trained = load_trained(run, device=place)
        test = trained.config.load_data().test
        options = Options(
            rows=first_rows(test, limit),
            label=label_of(run),
            out=out or run / RECORDS,
            progress=True,
            command=command_line(),
        )
        yield Judged(trained, test, options | how, world.leads)


@contextmanager
def explaining_errors() -> Iterator[None]:
    """What a user can put right is said in one line; the command ends with status 1."""
    try:
        yield
    except (ValueError, TypeError, RunError, CheckpointError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def device_or_first_gpu(device: str | None) -> str:
    """The device asked for; otherwise the first GPU if there is one."""
    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def label_of(run: Path) -> str:
    """What the network of a run is called in records: the name of its folder."""
    return run.resolve().name


def first_rows(data: Examples, limit: int | None) -> range | None:
    """The first `limit` rows; None, which is all of them, without a limit."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be a number of images, at least 1, got {limit}")
    return None if limit is None else range(min(limit, len(data)))


def training_radius(trained: Trained) -> float:
    """The radius that a run was trained against."""
    attack = trained.config.defense.attack
    if attack is None:
        raise ValueError(f"{trained.folder} was not trained against an attack, so it has no radius; give --eps")
    return attack.threat.eps


def command_line() -> str:
    """This command, as it was typed, however the program was started."""
    return shlex.join(["advbnn", *sys.argv[1:]])


def show(records: Sequence[Record]) -> None:
    """Prints accuracies as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "attack", "radius", "varied", "accuracy", "95 % interval", "over seeds", box=None)
    for column in table.columns:
        column.no_wrap = True
    for record in records:
        table.add_row(
            record.model.label,
            record.name,
            "" if record.threat is None else f"{record.threat.norm} {record.threat.eps:.4g}",
            "" if record.at is None else f"{record.curve} {record.at:g}",
            f"{record.accuracy:.2%}",
            _from_to(*record.interval),
            _from_to(record.spread.min, record.spread.max),
        )
    console = Console()
    console.print(table)
    first = records[0]
    console.print(
        f"{first.n:,} images of {first.data.name}; evaluation seeds: {len(first.seeds)}. The classifier is the mean of "
        f"{first.samples if first.curve != 'ensemble' else 'so many'} draws, which no attack has seen."
    )


def _from_to(low: float, high: float) -> str:
    return f"{100 * low:.1f} - {100 * high:.1f} %"
