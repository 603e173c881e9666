"""advbnn reproduce: the paper's tables and figures, made again and judged."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.cli.options import folder_to_write

if TYPE_CHECKING:
    from advbnn.paper import Reproduction
    from advbnn.paper.plan import Plan
    from advbnn.paper.workers import Outcome
    from advbnn.report.tables import Table


def reproduce(
    experiment: Annotated[str, typer.Argument(help="table1, fig2, fig3, fig4, lipschitz, alpha or all.")],
    data: Annotated[str, typer.Option(help="cifar10, stl10, imagenet143, digits, or the path of an image folder.")],
    profile: Annotated[
        str | None, typer.Option(help="authors_code or paper; ours for digits. Left out, the first that there is.")
    ] = None,
    like: Annotated[str | None, typer.Option(help="For an image folder: the data set whose numbers to use.")] = None,
    root: Annotated[Path | None, typer.Option(help="Where the files of a named data set are; or ADVBNN_DATA.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of it all; reproduced/DATA-PROFILE if left out.")] = None,
    defenses: Annotated[str | None, typer.Option(help="Such as adv,adv_bnn; all five if left out.")] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each defence, with seeds 0, 1, ...")] = 1,
    beside: Annotated[
        Path | None, typer.Option(help="A reproduction whose other defences are to be compared with these.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many test images.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of all trainings. May be repeated."),
    ] = None,
    audit: Annotated[
        str | None, typer.Option(help="quick, standard, thorough or none; what suits the data if left out.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda for all GPUs, or one such as cuda:1; GPUs if there are any.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes; one for each GPU, or two on the CPU, if left out.")
    ] = None,
    engine: Annotated[str, typer.Option(help="How training steps run: auto, graph, compile or eager.")] = "auto",
    estimate: Annotated[
        bool, typer.Option("--estimate/--no-estimate", help="Time a few steps first, to say how long it will take.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done and how long it takes.")] = False,
) -> None:
    """Make the paper's tables and figures: train what is missing, measure, draw, and judge its claims.

    Started again with the same options it goes on where it was; what is finished is not done again.
    """
    import torch

    from advbnn.cli.common import command_line, device_or_first_gpu, explaining_errors
    from advbnn.defenses.profiles import DEFENSES
    from advbnn.errors import unknown
    from advbnn.fast.compiling import ENGINES
    from advbnn.files import locked_folder
    from advbnn.paper import EXPERIMENTS, Evidence, Experiment, Reproduction, write_all
    from advbnn.paper.experiment import BESIDE, FILE, check_beside, stored
    from advbnn.paper.plan import make_plan
    from advbnn.paper.reproduction import default_folder
    from advbnn.paper.tables import table1
    from advbnn.paper.work import load_splits
    from advbnn.paper.workers import device_list
    from advbnn.report.select import labels_of
    from advbnn.training.interrupts import Interrupted

    with explaining_errors():
        if engine not in ENGINES:
            raise unknown("engine", engine, ENGINES)
        if experiment not in ("all", *EXPERIMENTS):
            raise unknown("experiment", experiment, ("all", *EXPERIMENTS))
        chosen = Experiment.choose(data, profile, like, settings or (), limit)
        folder = out or default_folder(chosen.title)
        folder_to_write(folder)
        chosen.check(folder)
        if beside is not None:
            check_beside(chosen, beside)
        place = device_or_first_gpu(device)
        plan = make_plan(
            chosen,
            folder,
            EXPERIMENTS if experiment == "all" else [experiment],
            defenses=[name.strip() for name in defenses.split(",")] if defenses is not None else DEFENSES,
            seeds=seeds,
            audit=audit,
            root=None if root is None else str(root),
            engine=engine,
        )
        left = len(plan.pending_runs()) or len(plan.pending())
        devices = device_list(place, jobs, left)
        # a network as small as that of digits gains nothing from threads, and loses much where the cores are busy
        threads = 1 if chosen.like == "digits" else max(1, (os.cpu_count() or 1) // len(devices))
        torch.set_num_threads(threads)
        reproduction = Reproduction(plan=plan, devices=devices, threads=threads, command=command_line())
        seconds = _announce(plan, reproduction, estimate)
        if dry_run:
            return
        with locked_folder(folder):
            facts = stored(folder)[1] if (folder / FILE).exists() else {}
            if beside is not None:
                facts[BESIDE] = os.path.relpath(beside, folder)
            chosen.write(folder, **facts | {"test_images": len(load_splits(plan.runs[0].config).test)})
            try:
                outcome = reproduction.carry_out(*seconds, typer.echo)
            except Interrupted as stop:
                typer.echo(
                    f"stopped; all that was done is kept in {folder}: the same command goes on from there", err=True
                )
                raise typer.Exit(128 + (stop.signal or 2)) from None
            _complain(outcome)
            evidence = Evidence.read(folder)
            if evidence.records:
                report = write_all(folder, reproduction.images(labels_of(evidence.records)))
                show(table1(evidence))
                typer.echo(f"Accuracy in %. Intervals, claims and figures: {folder / 'results.md'}\nReport: {report}")
        if outcome.failed:
            raise typer.Exit(1)


def show(table: "Table") -> None:
    """Prints a table of the report, without intervals, which would not fit a terminal."""
    from rich.console import Console
    from rich.table import Table as Shown

    shown = Shown(box=None, padding=(0, 1))
    for name, numeric in zip(table.columns, table.numeric, strict=True):
        shown.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for heading, rows in table.groups:
        for number, row in enumerate(rows):
            title = heading.text if number == 0 else ""
            shown.add_row(title, *(cell.text for cell in row[1:]))
    Console().print(shown)


def _announce(plan: "Plan", reproduction: "Reproduction", estimate: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Says what is to be done, and how long that may take."""
    from advbnn.paper.durations import in_words, together

    runs, measurements = plan.pending_runs(), plan.pending()
    typer.echo(f"The paper on {plan.experiment.data}, by the numbers of {plan.experiment.profile!r}: {plan.out}")
    for reason in plan.left_out:
        typer.echo(f"left out: {reason}")
    if not runs and not measurements:
        typer.echo("Everything is there already; only the tables and figures are made anew.")
        return {}, {}
    if estimate:
        typer.echo("Timing a few steps of each defence; --no-estimate leaves this out.")
    trainings, measured = reproduction.seconds() if estimate else ({}, {})
    for kind, names, known in (
        ("train", [run.label for run in runs], trainings),
        ("measure", [one.name for one in measurements], measured),
    ):
        for name in names:
            about = f"about {in_words(known[name])}" if name in known else ""
            typer.echo(f"  to {kind:8} {name:28} {about}".rstrip())
    if estimate:
        workers = len(reproduction.devices)
        seconds = together([*trainings.values(), *measured.values()], workers)
        typer.echo(
            f"An estimate by a few steps, timed here: {in_words(seconds)} with "
            f"{workers} process{'es' if workers > 1 else ''} on {', '.join(dict.fromkeys(reproduction.devices))}."
        )
    return trainings, measured


def _complain(outcome: "Outcome") -> None:
    for name, reason in outcome.failed.items():
        typer.echo(f"error: {name} failed: {reason}", err=True)
    if outcome.skipped:
        typer.echo(f"error: not done for that reason: {', '.join(outcome.skipped)}", err=True)
