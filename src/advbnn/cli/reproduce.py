"""advbnn reproduce: the paper's tables, figures and claims."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.cli import options

if TYPE_CHECKING:
    from advbnn.paper import Reproduction
    from advbnn.report.elements import Table
    from advbnn.training.tasks import Task


def reproduce(
    experiment: Annotated[
        str, typer.Argument(help="table1, fig2, fig3, fig4, lipschitz, alpha, several as fig2,fig4, or all.")
    ],
    data: Annotated[str, typer.Option(help="cifar10, stl10, imagenet143, digits, or the path of an image folder.")],
    profile: Annotated[
        str | None, typer.Option(help="Hyper-parameters: authors_code (default) or paper; ours for digits.")
    ] = None,
    like: Annotated[str | None, typer.Option(help="For an image folder: whose hyper-parameters to use.")] = None,
    root: Annotated[Path | None, typer.Option(help="Where the files of a named data set are; or ADVBNN_DATA.")] = None,
    out: Annotated[Path | None, typer.Option(help="The output folder; default reproduced/DATA-PROFILE.")] = None,
    defenses: Annotated[str | None, typer.Option(help="Such as adv,adv_bnn; default all five.")] = None,
    seeds: Annotated[int, options.count("Trainings of each defence, with seeds 0, 1, ...")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of these seeds, to add trainings to others.")] = 0,
    beside: Annotated[
        Path | None, typer.Option(help="Another reproduction, whose other defences are included in the comparison.")
    ] = None,
    limit: Annotated[int | None, options.count("Use only the first N test images.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of all trainings. May be repeated."),
    ] = None,
    audit: Annotated[
        str | None, typer.Option(help="quick, standard, thorough or none; default depends on the data.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda for all GPUs, or one such as cuda:1; default all GPUs, else cpu.")
    ] = None,
    jobs: options.Jobs = None,
    cluster: options.Cluster = None,
    engine: Annotated[str, typer.Option(help="How training steps run: auto, graph, compile or eager.")] = "auto",
    estimate: Annotated[
        bool, typer.Option("--estimate/--no-estimate", help="Time a few steps first to estimate the duration.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan and its duration.")] = False,
) -> None:
    """Reproduce the paper's tables and figures: train what is missing, measure, draw, and check its claims.

    Run again with the same options, it resumes where it stopped; finished work is kept.
    """
    import torch

    from advbnn.cli.common import command_line, device_or_first_gpu, show_failures
    from advbnn.defenses.profiles import DEFENSES
    from advbnn.machine.files import locked_folder
    from advbnn.machine.threads import share_of_threads
    from advbnn.paper import EXPERIMENTS, Evidence, Experiment, Reproduction, check_claims, make_plan, write_all
    from advbnn.paper.experiment import BESIDE, FILE, check_beside, stored
    from advbnn.paper.tables import table1
    from advbnn.paper.write import verdicts_in_words
    from advbnn.report.select import labels_of
    from advbnn.training.config import load_splits
    from advbnn.training.interrupts import Interrupted
    from advbnn.training.tasks import device_list, run_tasks

    names = [name.strip() for name in experiment.split(",")]
    chosen = Experiment.choose(data, profile, like, settings or (), limit)
    folder = out or Path("reproduced") / chosen.title
    options.folder_to_write(folder)
    chosen.check(folder)
    if beside is not None:
        check_beside(chosen, beside)
    place = device_or_first_gpu(device)
    plan = make_plan(
        chosen,
        folder,
        EXPERIMENTS if "all" in names else names,
        defenses=[name.strip() for name in defenses.split(",")] if defenses is not None else DEFENSES,
        seeds=seeds,
        first_seed=first_seed,
        audit=audit,
        root=None if root is None else str(root),
        engine=engine,
    )
    left = len(plan.pending_runs()) or len(plan.pending())
    devices = device_list(place, options.local_jobs(jobs, cluster), left)
    threads = share_of_threads(len(devices))
    torch.set_num_threads(threads)
    reproduction = Reproduction(plan=plan, devices=devices, command=command_line())
    # a cluster has other devices than this machine
    tasks = _announce(reproduction, estimate and cluster is None)
    if dry_run:
        return
    with locked_folder(folder):
        facts = stored(folder)[1] if (folder / FILE).exists() else {}
        if beside is not None:
            facts[BESIDE] = os.path.relpath(beside, folder)
        test = load_splits(plan.runs[0].config).test
        chosen.write(folder, **facts | {"test_images": len(test), "test_sha256": test.fingerprint()})
        places = devices if cluster is None else [device] if device else []
        try:
            results = run_tasks(tasks, places, threads=threads, log=typer.echo, cluster=cluster)
        except Interrupted as stop:
            with suppress(OSError):  # the terminal may be closed
                typer.echo(f"stopped; finished work is kept in {folder}, run the same command to resume", err=True)
            raise typer.Exit(128 + (stop.signal or 2)) from None
        show_failures(results)
        evidence = Evidence.read(folder)
        if evidence.records:
            report = write_all(folder, reproduction.images(labels_of(evidence.records)))
            show(table1(evidence))
            typer.echo(f"Accuracy in %. {verdicts_in_words(check_claims(evidence))}")
            typer.echo(f"Intervals, claims and figures: {folder / 'results.md'}\nReport: {report}")
    if results.failed:
        raise typer.Exit(1)


def show(table: "Table") -> None:
    """Prints a table of the report without intervals, which do not fit a terminal."""
    from rich.table import Table as Shown

    from advbnn.cli.common import console

    shown = Shown(box=None, padding=(0, 1))
    for name, numeric in zip(table.columns, table.numeric, strict=True):
        shown.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for heading, rows in table.groups:
        for number, row in enumerate(rows):
            shown.add_row("" if number else heading.text, *(cell.text for cell in row[1:]))
    console().print(shown)


def _announce(reproduction: "Reproduction", estimate: bool) -> list["Task"]:
    """Prints and returns what is to be done, with estimates of its duration."""
    from advbnn.training.tasks import in_words, wall_time

    plan = reproduction.plan
    experiment = plan.experiment
    typer.echo(f"The paper on {experiment.data}, profile {experiment.profile!r}: {plan.out}")
    for reason in plan.left_out:
        typer.echo(f"left out: {reason}")
    tasks = reproduction.tasks()
    if not tasks:
        typer.echo("Everything is done; only tables and figures are made again.")
        return tasks
    if estimate:
        typer.echo("Timing a few steps of each defence; --no-estimate skips this.")
        tasks = reproduction.tasks(reproduction.estimate())
    for task in tasks:
        typer.echo(f"  {task.name:38} {'' if task.seconds is None else f'about {in_words(task.seconds)}'}".rstrip())
    if estimate:
        devices = reproduction.devices
        count = "1 worker" if len(devices) == 1 else f"{len(devices)} workers"
        total = in_words(wall_time([task.seconds or 0.0 for task in tasks], len(devices)))
        typer.echo(f"Estimated time: {total} with {count} on {', '.join(dict.fromkeys(devices))}.")
    return tasks
