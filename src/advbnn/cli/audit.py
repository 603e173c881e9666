"""advbnn audit: the worst that many attacks together do to a run, and signs that they were misled."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.cli.options import (
    LEVELS,
    BatchSize,
    Device,
    Engine,
    Last,
    Norm,
    Out,
    Precision,
    Radii,
    named,
    refuse_larger_than_images,
)

if TYPE_CHECKING:
    from advbnn.evaluation.audit.worst_case import Audit

FEW_HUNDRED = 200


def audit(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    level: Annotated[str, named(LEVELS, "quick (a first look), standard or thorough (for a paper).")] = "standard",
    eps: Radii = None,
    norm: Norm = "linf",
    transfer_from: Annotated[
        list[Path] | None, typer.Option(help="Another run, whose adversarial examples are tried too. May be repeated.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Draws of the network that judge a single attack.")] = 20,
    seeds: Annotated[int, typer.Option(help="Repetitions of the whole audit.")] = 1,
    limit: Annotated[
        int | None,
        typer.Option(help=f"Only the first so many test images; if left out, {FEW_HUNDRED} at quick, else all."),
    ] = None,
    batch_size: BatchSize = 250,
    out: Out = None,
    last: Last = False,
    device: Device = None,
    engine: Engine = "auto",
    precision: Precision = "full",
) -> None:
    """Attack a run in many ways, count what survives all of them, and look for signs that its gradients mislead.

    Started by torchrun, it works on as many processes as that has started. An interrupted audit goes on where it was.
    """
    from advbnn.attacks.threat import Threat
    from advbnn.cli.common import judged, label_of, training_radius
    from advbnn.evaluation.accuracy import Options
    from advbnn.evaluation.audit.worst_case import audit as audit_model
    from advbnn.training.loading import load_trained

    refuse_larger_than_images(norm, eps or ())
    how = Options(samples=samples, seeds=seeds, batch_size=batch_size, engine=engine, precision=precision)
    few = FEW_HUNDRED if limit is None and level == "quick" else limit
    with judged(run, device, few, out, how, last) as (trained, test, options, leads):
        place = next(trained.model.parameters()).device
        found = audit_model(
            trained.model,
            test,
            [Threat(norm, radius) for radius in eps or [training_radius(trained)]],
            level,
            transfer_from={label_of(other): load_trained(other, device=place).model for other in transfer_from or ()},
            **options,
        )
        if leads:
            show_audit(found)


def show_audit(found: "Audit") -> None:
    """Prints attacks, the worst case and flags."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for record in found.records:
        table = Table("attack", "kind", "left right", box=None)
        for attack in record.details["attacks"]:
            n, correct = sum(attack["n"]), sum(attack["correct"])
            left = f"{100 * correct / n:.1f} %" if attack["on"] == "all" else f"{correct} of {n} survivors"
            table.add_row(attack["name"], attack["role"], left)
        console.print(table)
    console.print(str(found), markup=False, highlight=False)
    inconclusive = sum(sum(record.details["inconclusive"]) for record in found.records)
    if inconclusive:
        console.print(
            f"{inconclusive} images were inconclusive and are counted as not robust; a higher level uses more weight "
            "samples."
        )
