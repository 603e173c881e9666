"""advbnn curve: the accuracy of a run while one thing varies."""

from pathlib import Path
from typing import Annotated

import typer

from advbnn.cli.options import (
    ATTACKS,
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
    named,
    numeric,
    one_of,
    refuse_larger_than_images,
)

OVER = ("radius", "ensemble", "steps", "eot")


def curve(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    over: Annotated[
        str, typer.Argument(parser=one_of(OVER), metavar="over", help="What varies: radius, ensemble, steps or eot.")
    ],
    at: Annotated[
        list[float] | None, numeric("NUMBER", "A value. May be repeated; those of the paper if left out.")
    ] = None,
    attack: Annotated[str, named(("clean", *ATTACKS), "As for evaluate; clean for ensemble alone.")] = "paper",
    eps: Annotated[float | None, numeric("RADIUS", "Such as 8/255; the radius of training if left out.")] = None,
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
    from advbnn.attacks.threat import Threat
    from advbnn.cli.attacks import make_attack, refuse_impossible, title
    from advbnn.cli.common import judged, show, training_radius
    from advbnn.evaluation import curves
    from advbnn.evaluation.accuracy import CLEAN, Options

    if attack == CLEAN and over != "ensemble":
        raise typer.BadParameter(f"a curve over {over} needs an attack, got 'clean'")
    if over != "radius" and not all(value.is_integer() for value in at or ()):
        raise typer.BadParameter(f"a curve over {over} takes whole numbers, got {', '.join(map(str, at or ()))}")
    refuse_impossible([] if attack == CLEAN else [attack], norm, steps, eot)
    refuse_larger_than_images(norm, [*([] if eps is None else [eps]), *(at or () if over == "radius" else ())])
    whole = [int(value) for value in at or ()]
    how = Options(seeds=seeds, batch_size=batch_size, engine=engine, precision=precision)
    with judged(run, device, limit, out, how, last) as (trained, test, options, leads):
        # over radii any radius will do to make the attack
        any_radius = over == "radius" or attack == CLEAN
        radius = eps if eps is not None else 1.0 if any_radius else training_radius(trained)
        chosen = None if attack == CLEAN else make_attack(attack, trained.model, Threat(norm, radius), steps, eot)
        name = attack if chosen is None or over in ("steps", "eot") else title(attack, chosen)
        if over == "ensemble" or chosen is None:
            sizes = whole or curves.ENSEMBLE_SIZES
            records = curves.ensemble_curve(trained.model, test, chosen, sizes, name=name, **options)
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
