"""advbnn audit: the worst that many attacks together do to a run, and signs that they were misled."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from advbnn.audit import Audit

FEW_HUNDRED = 200


def audit(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    level: Annotated[
        str, typer.Option(help="quick (a minute on a laptop), standard or thorough (a paper).")
    ] = "standard",
    eps: Annotated[
        list[float] | None, typer.Option(help="Radius. May be repeated; the radius of training if left out.")
    ] = None,
    norm: Annotated[str, typer.Option(help="linf, l2 or l1.")] = "linf",
    transfer_from: Annotated[
        list[Path] | None, typer.Option(help="Another run, whose adversarial examples are tried too. May be repeated.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Draws of the network that judge a single attack.")] = 20,
    seeds: Annotated[int, typer.Option(help="Repetitions of the whole audit.")] = 1,
    limit: Annotated[
        int | None,
        typer.Option(help=f"Only the first so many test images; if left out, {FEW_HUNDRED} at quick, else all."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images attacked at a time.")] = 250,
    out: Annotated[Path | None, typer.Option(help="The file of records; records.json in the run if left out.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; the first GPU if there is one.")] = None,
) -> None:
    """Attack a run in many ways, count what survives all of them, and look for signs that its gradients mislead.

    Started by torchrun, it works on as many processes as that has started. An interrupted audit goes on where it was.
    """
    from advbnn.audit import audit as audit_model
    from advbnn.commands.judging import (
        RECORDS,
        command_line,
        device_or_first_gpu,
        explaining_errors,
        first_rows,
        label_of,
        training_radius,
    )
    from advbnn.distributed import joined
    from advbnn.threat import Threat
    from advbnn.trained import load_trained

    with explaining_errors(), joined(device_or_first_gpu(device)) as (world, place):
        trained = load_trained(run, device=place)
        test = trained.config.load_data().test
        found = audit_model(
            trained.model,
            test,
            [Threat(norm, radius) for radius in eps or [training_radius(trained)]],
            level,
            transfer_from={label_of(other): load_trained(other, device=place).model for other in transfer_from or ()},
            samples=samples,
            seeds=seeds,
            batch_size=batch_size,
            rows=first_rows(test, FEW_HUNDRED if limit is None and level == "quick" else limit),
            label=label_of(run),
            out=out or run / RECORDS,
            progress=True,
            command=command_line(),
        )
        if world.leads:
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
    undecided = sum(sum(record.details["undecided"]) for record in found.records)
    if undecided:
        console.print(f"{undecided} images stayed undecided and count as not robust; a higher level draws more often.")
