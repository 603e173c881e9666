"""advbnn uncertainty: calibration, selective prediction and detection of adversarial examples of a run."""

from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.cli import options

if TYPE_CHECKING:
    from advbnn.evaluation.records import Records


def uncertainty(
    run: options.Run,
    attack: Annotated[
        list[str] | None,
        options.named(options.ATTACKS, "As for evaluate. May be repeated; pgd and evasive by default."),
    ] = None,
    eps: options.Radii = None,
    norm: options.Norm = "linf",
    steps: options.Steps = None,
    eot: options.Eot = 1,
    foreign: Annotated[
        list[str] | None, typer.Option(help="Another data set, by name or folder, to be detected. May be repeated.")
    ] = None,
    samples: options.Samples = 20,
    seeds: options.Seeds = 3,
    limit: options.Limit = None,
    batch_size: options.BatchSize = 250,
    out: options.Out = None,
    last: options.Last = False,
    device: options.Device = None,
    engine: options.Engine = "auto",
    precision: options.Precision = "full",
) -> None:
    """Measure calibration, selective prediction and detection of adversarial examples, on clean and attacked images.

    Records that are in the file already are not computed again; `advbnn report` shows them.
    """
    from advbnn.attacks.threat import Threat
    from advbnn.cli.attacks import make_attack, refuse_impossible, title
    from advbnn.cli.common import open_run, training_radius
    from advbnn.data import NAMES, check_source, load
    from advbnn.evaluation import uncertainty as measure

    names = attack or ["pgd", "evasive"]
    refuse_impossible(names, norm, steps, eot)
    options.refuse_larger_than_images(norm, eps or ())
    settings = {"samples": samples, "seeds": seeds, "batch_size": batch_size, "engine": engine, "precision": precision}
    for source in foreign or ():
        check_source(source, "foreign")
    with open_run(run, device=device, limit=limit, out=out, last=last, **settings) as (trained, test, shared, leads):
        # all are loaded and made before anything is measured, as some do not fit the network
        others = [load(source, size=None if source in NAMES else test.shape[-1]).test for source in foreign or ()]
        measure.check_foreign(test, others)
        chosen = [
            {title(name, one): one}
            for radius in eps or [training_radius(trained, norm)]
            for name in names
            for one in (make_attack(name, trained.model, Threat(norm, radius), steps, eot),)
        ]
        records = measure.uncertainty(trained.model, test, **shared)
        for attacks in chosen:
            records += measure.uncertainty(trained.model, test, attacks, **shared)
        for one in others:
            records += measure.ood_detection(trained.model, test, {one.name: one}, **shared)
        if leads:
            _show(records)


def _show(records: "Records") -> None:
    from rich.console import Console
    from rich.table import Table

    scores = Table("images", "accuracy", "NLL", "Brier", "ECE", "AURC", box=None)
    detected = Table("AUROC against clean images", "entropy", "mutual information", "entropy, successful", box=None)
    for record in records:
        radius = "" if record.threat is None else f" at {record.threat.norm} {record.threat.eps:.4g}"
        details = record.details
        if record.kind == "uncertainty":
            cells = (f"{details[name]['mean']:.3f}" for name in ("nll", "brier", "ece", "aurc"))
            scores.add_row(record.name + radius, f"{record.accuracy:.1%}", *cells)
        else:
            cells = (f"{details['auroc'][name]['mean']:.3f}" for name in ("entropy", "mutual_information"))
            successes = details.get("auroc_of_successes")
            detected.add_row(record.name + radius, *cells, f"{successes['entropy']['mean']:.3f}" if successes else "-")
    Console().print(scores, detected, sep="\n")
