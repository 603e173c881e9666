"""advbnn compare: two models on the same images, with a paired interval."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.cli import options
from advbnn.cli.groups import AttackOptions, Measurement, Subject, Subjects
from advbnn.errors import ArgumentError

if TYPE_CHECKING:
    from torch import device

    from advbnn.evaluation.comparison import Comparison
    from advbnn.evaluation.records import Records

FORMATS = ("text", "markdown", "csv", "latex")


def compare(
    *,
    subjects: Subjects,
    attack: Annotated[
        list[str] | None,
        options.named(
            ("clean", *options.ATTACKS),
            "Measure this attack on both, as evaluate does. May be repeated; without it, stored records are compared.",
        ),
    ] = None,
    eps: options.Radii = None,
    effort: AttackOptions,
    how: Measurement,
    format: Annotated[str, options.named(FORMATS, "How to print the table: {names}.")] = "text",
) -> None:
    """Compare two models on the same images: runs, networks of your own (--model), or files of records.

    Stored records are compared where both models have the same measurement. Where they have none, and with --attack,
    both are evaluated: without --attack on clean images, and under PGD with averaged gradients.
    """
    from advbnn.cli.attacks import averaging, refuse_impossible
    from advbnn.cli.common import evaluation_processes
    from advbnn.evaluation.comparison import compare as compare_records

    sides, measuring = _sides(subjects), _measuring(eps, effort, how)
    names, effort = (attack, effort) if attack else (["clean", "pgd"], averaging(effort))
    refuse_impossible(names, effort, eps or ())
    with evaluation_processes(how.device) as (world, place):
        found = [] if attack else compare_records(*(_stored(side, how) for side in sides))
        if found and measuring:
            what = "without --attack stored records are compared as they are"
            remedy = "name an --attack to measure, such as --attack pgd, or leave these out"
            raise typer.BadParameter(f"{', '.join(measuring)}: {what}; {remedy}")
        if not found:
            first, second = _measured(sides, names, eps, effort, how, place, world.leads)
            found = compare_records(first, second)
        if world.leads:
            _show([_told_apart(one, sides) for one in found], format)


def _sides(subjects: Subjects) -> list[Path | Subject]:
    """The two models: files of records, and runs or networks of one's own."""
    given = subjects.runs or []
    models = iter(replace(subjects, runs=[path for path in given if not path.is_file()]).each())
    sides: list[Path | Subject] = [path if path.is_file() else next(models) for path in given]
    sides += models
    if len(sides) != 2:
        raise typer.BadParameter(f"give two models: run folders, files of records or --model; got {len(sides)}")
    return sides


def _measuring(eps: list[float] | None, effort: AttackOptions, how: Measurement) -> list[str]:
    """The options that only a measurement uses."""
    given, usual = ({**vars(one), **vars(other)} for one, other in ((effort, how), (AttackOptions(), Measurement())))
    of_any = ("out", "device", "batch_size", "engine")
    names = [name for name in given if given[name] != usual[name] and name not in of_any]
    flags = [f"no-{name}" if given[name] is False else name.replace("_", "-") for name in names]
    return [f"--{flag}" for flag in (["eps"] if eps else []) + flags]


def _told_apart(one: "Comparison", sides: Sequence[Path | Subject]) -> "Comparison":
    """Two runs or files of one name are called by their paths."""
    if one.labels[0] != one.labels[1]:
        return one
    first, second = (str(side if isinstance(side, Path) else side.run or side.model) for side in sides)
    return replace(one, labels=(first, second))


def _stored(side: Path | Subject, how: Measurement) -> "Records":
    from advbnn.cli.common import RECORDS
    from advbnn.evaluation.records import Records
    from advbnn.training.run_folder import run_label

    if isinstance(side, Path):
        return Records.load(side)
    file = how.out or (side.run or Path()) / RECORDS
    if side.run is None or not file.is_file():
        return Records()
    return Records.load(file).where(label=run_label(side.run))


def _measured(
    sides: Sequence[Path | Subject],
    names: Sequence[str],
    eps: list[float] | None,
    effort: AttackOptions,
    how: Measurement,
    place: "device",
    leads: bool,
) -> list["Records"]:
    from advbnn.cli.attacks import measured, weaknesses
    from advbnn.cli.common import evaluation_options, open_all
    from advbnn.evaluation.accuracy import CLEAN, Evaluation

    subjects = [side for side in sides if isinstance(side, Subject)]
    if len(subjects) < len(sides):
        raise ArgumentError(
            "the two have no measurement on common images; a file of records cannot be measured again: give the run "
            "folders or --model, or files with records of the same attack, radius and images"
        )
    opened, test = open_all(subjects, place, leads)
    # both at the same radii: those of the model that has one
    known = [one for one in opened if one.threat is not None] or opened
    radii = eps or ([known[0].radius(effort.norm)] if {*names} - {CLEAN} else [])
    pairs = zip(opened, subjects, strict=True)
    evaluations = [Evaluation(one.model, test, **evaluation_options(subject, one, how)) for one, subject in pairs]
    found = measured(evaluations, names, radii, effort)
    notes = [note for records, one in zip(found, evaluations, strict=True) for note in weaknesses(records, one)]
    for note in dict.fromkeys(notes) if leads else ():
        typer.echo(note, err=True)
    return found


def _show(found: "Sequence[Comparison]", format: str) -> None:
    from advbnn.report.elements import Cell, Table, percent

    if not found:
        raise ArgumentError("the two have no measurement in common; give --attack")
    first, second = found[0].labels
    rows = []
    for one in found:
        low, high = (f"{100 * end:+.1f}" for end in one.interval)
        difference = Cell(f"{100 * one.difference:+.1f}", f"[{low}, {high}]", strong=one.significant)
        accuracies = (Cell(percent(share)) for share in one.accuracies)
        rows.append([Cell(one.what), *accuracies, difference, Cell(f"{one.n:,}")])
    table = Table(
        name="comparison",
        caption="Accuracy in %; the difference in points with its paired 95 % interval, bold if it excludes zero.",
        columns=["measurement", first, second, "difference", "images"],
        rows=rows,
    )
    typer.echo("\n".join(map(str, found)) if format == "text" else getattr(table, format)())
