"""advbnn curve: the accuracy of a run while one thing varies."""

from pathlib import Path
from typing import Annotated

import typer

OVER = ("radius", "ensemble", "steps", "eot")


def curve(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    over: Annotated[str, typer.Argument(help="What varies: radius, ensemble, steps or eot.")],
    at: Annotated[
        list[float] | None, typer.Option(help="A value. May be repeated; those of the paper if left out.")
    ] = None,
    attack: Annotated[str, typer.Option(help="As for evaluate; for ensemble also clean.")] = "paper",
    eps: Annotated[float | None, typer.Option(help="Radius; the radius of training if left out.")] = None,
    norm: Annotated[str, typer.Option(help="linf, l2 or l1.")] = "linf",
    steps: Annotated[int | None, typer.Option(help="Steps of the attack; each has its own default.")] = None,
    eot: Annotated[int, typer.Option(help="Draws that every gradient or query is averaged over.")] = 1,
    samples: Annotated[int, typer.Option(help="Draws of the network that make up the classifier.")] = 20,
    seeds: Annotated[int, typer.Option(help="Repetitions, each with randomness of its own.")] = 3,
    limit: Annotated[int | None, typer.Option(help="Only the first so many test images.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images attacked at a time.")] = 250,
    out: Annotated[Path | None, typer.Option(help="The file of records; records.json in the run if left out.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; the first GPU if there is one.")] = None,
) -> None:
    """Measure the accuracy of a run over the radius, the size of the ensemble, or the attack's steps or draws."""
    from advbnn import curves
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
    from advbnn.evaluate import CLEAN, Options
    from advbnn.messages import unknown
    from advbnn.threat import Threat
    from advbnn.trained import load_trained

    with explaining_errors(), joined(device_or_first_gpu(device)) as (world, place):
        trained = load_trained(run, device=place)
        test = trained.config.load_data().test
        options = Options(
            seeds=seeds,
            batch_size=batch_size,
            rows=first_rows(test, limit),
            label=label_of(run),
            out=out or run / RECORDS,
            progress=True,
            command=command_line(),
        )
        whole = [round(value) for value in at or ()]
        # over radii any radius will do to make the attack
        radius = eps or (1.0 if over == "radius" or attack == CLEAN else training_radius(trained))
        chosen = None if attack == CLEAN else make_attack(attack, trained.model, Threat(norm, radius), steps, eot)
        name = attack if chosen is None or over in ("steps", "eot") else title(attack, chosen)
        if over == "ensemble":
            sizes = whole or curves.ENSEMBLE_SIZES
            records = curves.ensemble_curve(trained.model, test, chosen, sizes, name=name, **options)
        elif over not in OVER:
            raise unknown("over", over, OVER)
        elif chosen is None:
            raise ValueError(f"a curve over {over} needs an attack, got 'clean'")
        else:
            options["samples"] = samples
            if over == "radius":
                records = curves.radius_curve(trained.model, test, chosen, at or curves.RADII, name=name, **options)
            else:
                follow = curves.steps_curve if over == "steps" else curves.eot_curve
                values = whole or (curves.STEPS if over == "steps" else curves.EOT_SAMPLES)
                records = follow(trained.model, test, chosen, values, name=name, **options)
        if world.leads:
            show(records)
