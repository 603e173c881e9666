"""What the commands that evaluate runs share."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer
from torch import nn

from advbnn.attacks.threat import Threat
from advbnn.cli.groups import Measurement, Subject
from advbnn.cli.options import file_to_write
from advbnn.data import Examples, ImageSet, check_source, load
from advbnn.data.chance import chance_note
from advbnn.data.folder import load_held_out
from advbnn.errors import ArgumentError, positive_whole
from advbnn.evaluation.accuracy import CLEAN
from advbnn.evaluation.records import Record
from advbnn.machine.processes import World, joined
from advbnn.models.from_file import load_model
from advbnn.modules import usable_device
from advbnn.names import DATA_SETS
from advbnn.training.loading import load_trained
from advbnn.training.run_folder import run_label
from advbnn.training.tasks import TaskResults

if TYPE_CHECKING:
    from rich.console import Console

RECORDS = "records.json"


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A network to be evaluated, and its data.

    Attributes:
        name: the run folder or the file, for messages.
        test: its test images.
        validation: its validation images, if there are any.
        threat: of its adversarial training, if it is a run with any.
    """

    model: nn.Module
    label: str
    name: str
    test: ImageSet
    validation: ImageSet | None = None
    threat: Threat | None = None

    def radius(self, norm: str) -> float:
        """The radius of adversarial training, in the norm of that training."""
        if self.threat is None:
            raise ArgumentError(f"{self.name} has no radius of adversarial training; give --eps")
        if self.threat.norm != norm:
            raise ArgumentError(f"--norm {norm} is not the norm of training, {self.threat.norm}; give --eps")
        return self.threat.eps


@contextmanager
def open_run(subject: Subject, how: Measurement) -> Iterator[tuple[Opened, Examples, dict[str, Any], bool]]:
    """A network to be evaluated on its first `limit` test images; errors become one line.

    Yields:
        The network, its test set, the keyword arguments of an evaluation, and whether this process prints results.
    """
    subject.check()
    with evaluation_processes(how.device) as (world, place):
        opened = open_subject(subject, place, world.leads)
        yield opened, opened.test, evaluation_options(subject, opened, how), world.leads


def evaluation_options(subject: Subject, opened: Opened, how: Measurement) -> dict[str, Any]:
    return {
        "rows": first_rows(opened.test, how.limit),
        "label": opened.label,
        "out": how.out or file_to_write((subject.run or Path()) / RECORDS),
        "progress": True,
        "command": command_line(),
        **how.settings(),
    }


def open_subject(subject: Subject, place: torch.device | str, leads: bool = True) -> Opened:
    if subject.model is not None and subject.data is not None:
        model = load_model(subject.model, subject.weights).to(place)
        source = Path(subject.model.rpartition(":")[0])
        label = source.stem if subject.weights is None else f"{source.stem}-{subject.weights.stem}"
        test, validation = _held_out(subject.data, subject.size, subject.root)
        return Opened(model=model, label=label, name=subject.model, test=test, validation=validation)
    run = subject.run or Path()
    trained = load_trained(run, device=place, last=subject.last)
    if not trained.finished and leads:
        typer.echo(f"warning: {run} is not finished; using what it has: {trained.unfinished}", err=True)
    defense = trained.config.defense
    if subject.last and defense.early_stopping is None:
        raise ArgumentError(f"{run} was trained without early stopping, to the last epoch; leave --last out")
    # records of unfinished training do not stand for the finished network
    which = " (last)" if subject.last else f" ({trained.unfinished})" if trained.unfinished else ""
    splits = trained.load_data(subject.root)
    return Opened(
        model=trained.model,
        label=run_label(run) + which,
        name=str(run),
        test=splits.test,
        validation=splits.validation,
        threat=None if defense.attack is None else defense.attack.threat,
    )


def _held_out(data: str, size: int | None, root: Path | None) -> tuple[ImageSet, ImageSet | None]:
    check_source(data, "data")
    if data not in DATA_SETS:
        if root is not None:
            raise ArgumentError(
                f"--root is for data sets with a name; the folder {data} has its images, so leave it out"
            )
        return load_held_out(data, size=size)
    splits = load(data, root, size=size)
    return splits.test, splits.validation


def open_all(subjects: Sequence[Subject], place: torch.device | str, leads: bool) -> tuple[list[Opened], Examples]:
    """Several networks with different labels, and the test set that all of them share."""
    opened = [open_subject(subject, place, leads) for subject in subjects]
    if len({one.label for one in opened}) != len(opened):
        listed = ", ".join(one.name for one in opened)
        raise ArgumentError(f"the names of the folders and files must differ, got {listed}")
    tests = [one.test for one in opened]
    if len({test.fingerprint() for test in tests}) > 1:
        raise ArgumentError(f"the models use different data: {', '.join(test.name for test in tests)}")
    if not tests:
        raise ArgumentError("there is nothing to compare; give two or more run folders, or --model with --data")
    return opened, tests[0]


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


def show_failures(results: TaskResults) -> None:
    for name, reason in results.failed.items():
        typer.echo(f"error: {name} failed: {reason}", err=True)
    if results.skipped:
        typer.echo(f"error: skipped as a result: {', '.join(results.skipped)}", err=True)


def first_rows(data: Examples, limit: int | None) -> range | None:
    """The first `limit` rows; None, which means all of them, without a limit."""
    return None if limit is None else range(min(positive_whole("limit", limit), len(data)))


def command_line() -> str:
    """The current command as typed, however the program was started."""
    return shlex.join(["advbnn", *sys.argv[1:]])


def console() -> "Console":
    """For tables: as wide as the terminal. Files and pipes, such as the log of a job, get whole lines."""
    from rich.console import Console

    width = None if (sys.stdout is not None and sys.stdout.isatty()) or "COLUMNS" in os.environ else 1000
    return Console(width=width, markup=False)  # names of runs may have brackets


def show(records: Sequence[Record], chance: float | None = None) -> None:
    """Prints accuracies as a table; before it a warning, if a clean accuracy is near `chance`."""
    from rich.table import Table

    for record in records:
        if record.kind == CLEAN and (note := chance_note(record.accuracy, chance, "the clean accuracy")):
            typer.echo(note)

    columns = {
        "model": [record.model.label for record in records],
        "attack": [record.name for record in records],
        "radius": [record.ball_title for record in records],
        "varied": ["" if r.at is None or r.curve == "radius" else f"{r.curve} {r.at:g}" for r in records],
        "accuracy": [f"{record.accuracy:.2%}" for record in records],
        "95 % interval": [_range(*record.interval) for record in records],
        "over seeds": [_range(r.spread.min, r.spread.max) if len(r.seeds) > 1 else "" for r in records],
    }
    columns = {title: cells for title, cells in columns.items() if any(cells)}  # a terminal is narrow
    table = Table(*columns, box=None)
    for column in table.columns[1:]:
        column.no_wrap = True
    table.columns[0].overflow = "fold"  # names often differ at their end only
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    output = console()
    output.print(table)
    first = records[0]
    samples = "the given number of" if first.curve == "ensemble" else first.samples
    ensemble = f"averages {samples} weight samples, which no attack has seen; one pass if it is not random"
    if first.exact:
        ensemble = f"is the exact mean over its {samples} members"
    output.print(
        f"{first.n:,} images of {first.data.name}; evaluation seeds: {len(first.seeds)}. The classifier {ensemble}."
    )


def _range(low: float, high: float) -> str:
    return f"{100 * low:.1f} - {100 * high:.1f} %"
