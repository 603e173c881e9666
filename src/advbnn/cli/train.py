"""advbnn train: a run from a TOML file, or a sweep of them."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.cli import options

if TYPE_CHECKING:
    from advbnn.training.sweep import SweepRun


def train(
    config: Annotated[Path, typer.Argument(help="The TOML file of the run; configs/ has one for each experiment.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting, such as attack.steps=5; 5,10 trains with each. May be repeated.",
        ),
    ] = None,
    seeds: Annotated[int | None, options.count("Train with so many seeds, counted from that of the file.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run folder, or that of a sweep; runs/ and the name of the TOML file by default."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint, if there is one. A sweep always does.")
    ] = False,
    device: options.Device = None,
    jobs: options.Jobs = None,
    cluster: options.Cluster = None,
) -> None:
    """Train a model with the settings of a TOML file; under torchrun, on all of its processes.

    A sweep trains all combinations of several values and seeds, each in its own folder, and ends with a table.
    """
    from advbnn.cli.common import device_or_first_gpu
    from advbnn.machine.processes import joined
    from advbnn.training.config import load_splits
    from advbnn.training.interrupts import Interrupted
    from advbnn.training.loop import fit_config
    from advbnn.training.sweep import plan_sweep

    folder = out or Path("runs") / config.stem
    options.folder_to_write(folder)
    runs = plan_sweep(config, settings or (), seeds, folder)
    chosen = runs[0].config
    splits = load_splits(chosen)  # tasks in this process use it, too
    try:
        if runs[0].varies or jobs is not None or cluster is not None:
            _train_all(runs, device, jobs, cluster)
            return
        with joined(device_or_first_gpu(device)) as (_, place):
            fit_config(chosen, splits, out=folder, resume=resume, device=place)
    except Interrupted as stop:
        with suppress(OSError):  # the terminal or the pipe may be closed
            typer.echo(str(stop), err=True)
        raise typer.Exit(128 + (stop.signal or 2)) from None


def _train_all(runs: list["SweepRun"], device: str | None, jobs: int | None, cluster: str | None) -> None:
    """Train the runs of a sweep, or the modes of one run, on several workers; show their table."""
    from advbnn.cli.common import device_or_first_gpu, show_failures
    from advbnn.machine.threads import share_of_threads
    from advbnn.training.interrupts import Interrupted
    from advbnn.training.sweep import sweep_table, sweep_tasks
    from advbnn.training.tasks import device_list, run_tasks

    if "WORLD_SIZE" in os.environ:
        raise typer.BadParameter("torchrun trains one run; use --cluster or --jobs for several, without torchrun")
    tasks = sweep_tasks(runs, shared_modes=len(runs) == 1)
    local = options.local_jobs(jobs, cluster)
    devices = [device] if device else []
    if cluster is None:
        devices = device_list(device_or_first_gpu(device), local, len(tasks))
    threads = share_of_threads(len(devices) or 1)
    try:
        results = run_tasks(tasks, devices, threads=threads, log=typer.echo, cluster=cluster)
    except Interrupted as stop:
        raise Interrupted("stopped; run the same command to resume", stop.signal) from None
    show_failures(results)
    _show(sweep_table(runs))
    if results.failed:
        raise typer.Exit(1)


def _show(rows: list[list[str]]) -> None:
    """Prints a table, numbers to the right; paths come last, so that a narrow terminal does not break columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, path in rows:
        typer.echo("  ".join([*(cell.rjust(width) for cell, width in zip(cells, widths, strict=False)), path]).rstrip())
