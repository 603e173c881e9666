"""advbnn uncertainty: calibration, selective prediction and detection of adversarial examples."""

from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.cli import options
from advbnn.cli.groups import AttackOptions, Measurement, Subject

if TYPE_CHECKING:
    from advbnn.evaluation.records import Records


ATTACKS = ("pgd", "evasive", "overconfident", "underconfident")
"""Attacks that do not know the detector, evade it, and are after the uncertainty alone."""

COVERAGE = 0.9


def uncertainty(
    *,
    subject: Subject,
    attack: Annotated[
        list[str] | None,
        options.named(
            options.ATTACKS, f"As for evaluate. May be repeated; by default {', '.join(ATTACKS)}, with EOT samples."
        ),
    ] = None,
    eps: options.Radii = None,
    foreign: Annotated[
        list[str] | None, typer.Option(help="Another data set, by name or folder, to be detected. May be repeated.")
    ] = None,
    effort: AttackOptions,
    how: Measurement,
) -> None:
    """Measure calibration, selective prediction, detection and abstention, on clean and attacked images.

    Records that are in the file already are not computed again; `advbnn report` shows them.
    """
    from advbnn.cli.attacks import averaging, make_attack, refuse_impossible, title
    from advbnn.cli.common import open_run
    from advbnn.data import check_source, load
    from advbnn.evaluation import uncertainty as measure
    from advbnn.names import DATA_SETS

    names, effort = (attack, effort) if attack else (list(ATTACKS), averaging(effort))
    refuse_impossible(names, effort, eps or ())
    for source in foreign or ():
        check_source(source, "foreign")
    with open_run(subject, how) as (opened, test, shared, leads):
        # all are loaded and made before anything is measured, as some do not fit the network
        others = [
            load(source, subject.root, size=None if source in DATA_SETS else test.shape[-1]).test
            for source in foreign or ()
        ]
        measure.check_foreign(test, others)
        chosen = []
        for radius in eps or [opened.radius(effort.norm)]:
            made = ((name, make_attack(name, opened.model, effort, radius)) for name in names)
            chosen.append({title(name, one): one for name, one in made})
        records = measure.uncertainty(opened.model, test, **shared)
        for attacks in chosen:
            records += measure.uncertainty(opened.model, test, attacks, **shared)
        for one in others:
            records += measure.ood_detection(opened.model, test, {one.name: one}, **shared)
        if leads:
            _show(records)


def _show(records: "Records") -> None:
    from rich.table import Table

    from advbnn.cli.common import console
    from advbnn.report.select import condition

    scores = Table("images", "accuracy", "NLL", "Brier", "ECE", "AURC", box=None)
    detected = Table("AUROC against clean images", "entropy", "mutual information", "entropy, successful", box=None)
    abstaining = Table("abstaining", "classified", "accuracy", "wrong, undetected", box=None)
    for record in records:
        name, details = condition(record), record.details
        if record.kind == "uncertainty":
            cells = (f"{details[key]['mean']:.3f}" for key in ("nll", "brier", "ece", "aurc"))
            scores.add_row(name, f"{record.accuracy:.1%}", *cells)
        else:
            cells = (f"{details['auroc'][key]['mean']:.3f}" for key in ("entropy", "mutual_information"))
            successes = details.get("auroc_of_successes")
            detected.add_row(name, *cells, f"{successes['entropy']['mean']:.3f}" if successes else "-")
            for row in details.get("abstention", ()):
                if row["coverage"] == COVERAGE:
                    numbers = (row[key] for key in ("classified", "accuracy", "undetected"))
                    abstaining.add_row(name, *(f"{n['mean']:.1%}" if n else "-" for n in numbers))
    tables = [table for table in (scores, detected, abstaining) if table.row_count]
    console().print(*tables, sep="\n")
    if abstaining.row_count:
        typer.echo(
            f"Abstaining above the entropy that {COVERAGE:.0%} of the clean images stay below: the share of attacked "
            "or foreign images that is classified, the accuracy on these, and the share of all that is wrong and not "
            "detected."
        )
