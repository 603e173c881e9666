"""advbnn evaluate: the accuracy of a run under attack."""

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="clean, paper (the authors' PGD), fgsm, pgd, apgd, apgd-dlr, mean (PGD on the mean network), cw, "
            "square or nes. May be repeated; clean and paper if left out."
        ),
    ] = None,
    eps: Annotated[
        list[float] | None, typer.Option(help="Radius. May be repeated; the radius of training if left out.")
    ] = None,
    norm: Annotated[str, typer.Option(help="linf, l2 or l1.")] = "linf",
    steps: Annotated[int | None, typer.Option(help="Steps of the attacks; each has its own default.")] = None,
    eot: Annotated[int, typer.Option(help="Draws that every gradient or query is averaged over.")] = 1,
    samples: Annotated[int, typer.Option(help="Draws of the network that make up the classifier.")] = 20,
    seeds: Annotated[int, typer.Option(help="Repetitions, each with randomness of its own.")] = 3,
    limit: Annotated[int | None, typer.Option(help="Only the first so many test images.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images attacked at a time.")] = 250,
    out: Annotated[Path | None, typer.Option(help="The file of records; records.json in the run if left out.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; the first GPU if there is one.")] = None,
) -> None:
    """Measure the accuracy of a run under attack; started by torchrun, on as many processes as that has started.

    Records that are in the file already are not made again, and an interrupted evaluation goes on where it was.
    """
    from advbnn.commands.attacks import make_attack, title
    from advbnn.commands.judging import (
        RECORDS,
        command_line,
        device_or_first_gpu,
        explaining_errors,
        first_rows,
        label_of,
        show,
        training_radius,
    )
    from advbnn.distributed import joined
    from advbnn.evaluate import CLEAN, Evaluation
    from advbnn.records import Records
    from advbnn.threat import Threat
    from advbnn.trained import load_trained

    with explaining_errors(), joined(device_or_first_gpu(device)) as (world, place):
        trained = load_trained(run, device=place)
        test = trained.config.load_data().test
        evaluation = Evaluation(
            trained.model,
            test,
            samples=samples,
            seeds=seeds,
            batch_size=batch_size,
            rows=first_rows(test, limit),
            label=label_of(run),
            out=out or run / RECORDS,
            progress=True,
            command=command_line(),
        )
        names = attack or [CLEAN, "paper"]
        records = evaluation.accuracy(CLEAN, None) if CLEAN in names else Records()
        attacking = [name for name in names if name != CLEAN]
        for radius in eps or ([training_radius(trained)] if attacking else []):
            for name in attacking:
                chosen = make_attack(name, trained.model, Threat(norm, radius), steps, eot)
                records += evaluation.accuracy(title(name, chosen), chosen)
        if world.leads:
            show(records)
