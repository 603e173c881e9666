"""advbnn audit: the worst case over a suite of attacks, and signs that gradients mislead them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.cli import options
from advbnn.names import AUDIT_LEVELS

if TYPE_CHECKING:
    from advbnn.evaluation.audit.worst_case import Audit

QUICK_IMAGES = 200


def audit(
    run: options.Run,
    level: Annotated[
        str, options.named(AUDIT_LEVELS, "{names}: quick for a first look, thorough for a publication.")
    ] = "standard",
    eps: options.Radii = None,
    norm: options.Norm = "linf",
    transfer_from: Annotated[
        list[Path] | None, typer.Option(help="Another run whose adversarial examples are tested too. May be repeated.")
    ] = None,
    samples: Annotated[int, options.count("Weight samples for the accuracy under a single attack.")] = 20,
    seeds: Annotated[int, options.count("Repetitions of the whole audit.")] = 1,
    limit: Annotated[
        int | None,
        options.count(f"Use only the first N test images; by default {QUICK_IMAGES} at quick, else all."),
    ] = None,
    batch_size: options.BatchSize = 250,
    out: options.Out = None,
    last: options.Last = False,
    device: options.Device = None,
    engine: options.Engine = "auto",
    precision: options.Precision = "full",
) -> None:
    """Attack a run in many ways, count the images that resist all of them, and check whether gradients mislead.

    Under torchrun it uses all of its processes. An interrupted audit resumes.
    """
    from advbnn.attacks.threat import Threat
    from advbnn.cli.common import label_of, open_run, training_radius
    from advbnn.evaluation.audit.worst_case import audit as audit_model
    from advbnn.training.loading import load_trained

    options.refuse_larger_than_images(norm, eps or ())
    limit = QUICK_IMAGES if limit is None and level == "quick" else limit
    settings = {"samples": samples, "seeds": seeds, "batch_size": batch_size, "engine": engine, "precision": precision}
    with open_run(run, device=device, limit=limit, out=out, last=last, **settings) as (trained, test, shared, leads):
        place = next(trained.model.parameters()).device
        found = audit_model(
            trained.model,
            test,
            [Threat(norm, radius) for radius in eps or [training_radius(trained, norm)]],
            level,
            transfer_from={label_of(other): load_trained(other, device=place).model for other in transfer_from or ()},
            **shared,
        )
        if leads:
            show_audit(found)


def show_audit(found: "Audit") -> None:
    """Prints the attacks, the worst case and the flags."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for record in found.records:
        table = Table("attack", "kind", "still correct", box=None)
        for attack in record.details["attacks"]:
            n, correct = sum(attack["n"]), sum(attack["correct"])
            left = f"{100 * correct / n:.1f} %" if attack["on"] == "all" else f"{correct} of {n} survivors"
            table.add_row(attack["name"], attack["role"], left)
        console.print(table)
    console.print(str(found), markup=False, highlight=False)
    inconclusive = sum(sum(record.details["inconclusive"]) for record in found.records)
    if inconclusive:
        remedy = "a higher level uses more weight samples"
        console.print(f"{inconclusive} images were inconclusive and are counted as not robust; {remedy}.")
