"""advbnn curve: the accuracy of a run while one thing varies."""

from pathlib import Path
from typing import Annotated

import typer

from advbnn.commands.options import (
    BatchSize,
    Device,
    Engine,
    Eot,
    Last,
    Limit,
    Norm,
    Out,
    Precision,
    Samples,
    Seeds,
    Steps,
)

OVER = ("radius", "ensemble", "steps", "eot")


def curve(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    over: Annotated[str, typer.Argument(help="What varies: radius, ensemble, steps or eot.")],
    at: Annotated[
        list[float] | None, typer.Option(help="A value. May be repeated; those of the paper if left out.")
    ] = None,
    attack: Annotated[str, typer.Option(help="As for evaluate; for ensemble also clean.")] = "paper",
    eps: Annotated[float | None, typer.Option(help="Radius; the radius of training if left out.")] = None,
    norm: Norm = "linf",
    steps: Steps = None,
    eot: Eot = 1,
    samples: Samples = 20,
    seeds: Seeds = 3,
    limit: Limit = None,
    batch_size: BatchSize = 250,
    out: Out = None,
    last: Last = False,
    device: Device = None,
    engine: Engine = "auto",
    precision: Precision = "full",
) -> None:
    """Measure the accuracy of a run over the radius, the size of the ensemble, or the attack's steps or draws."""
    from advbnn import curves
    from advbnn.commands.attacks import make_attack, title
    from advbnn.commands.judging import judged, show, training_radius
    from advbnn.evaluate import CLEAN, Options
    from advbnn.messages import unknown
    from advbnn.threat import Threat

    how = Options(seeds=seeds, batch_size=batch_size, engine=engine, precision=precision)
    with judged(run, device, limit, out, how, last) as (trained, test, options, leads):
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
        if leads:
            show(records)
