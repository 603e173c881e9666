"""advbnn curve: the accuracy of a run as a function of one quantity."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

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
    Run,
    Samples,
    Seeds,
    Steps,
    named,
    numeric,
    one_of,
    refuse_larger_than_images,
)

if TYPE_CHECKING:
    from advbnn.evaluation.records import Records

OVER = ("radius", "ensemble", "steps", "eot")


def curve(
    run: Run,
    over: Annotated[
        str,
        typer.Argument(parser=one_of(OVER), metavar="over", help="What varies: radius, ensemble, steps or eot."),
    ],
    at: Annotated[
        list[float] | None, numeric("NUMBER", "A value. May be repeated; the values of the paper by default.")
    ] = None,
    attack: Annotated[str, named(("clean", *ATTACKS), "{names}; clean only for ensemble.")] = "paper",
    eps: Annotated[float | None, numeric("RADIUS", "Such as 8/255; the radius of training by default.")] = None,
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
    """Measure the accuracy of a run over the radius, the size of the ensemble, or the attack's steps or EOT samples."""
    from advbnn.attacks.threat import Threat
    from advbnn.cli.attacks import make_attack, refuse_impossible, title
    from advbnn.cli.common import open_run, show, training_radius
    from advbnn.evaluation import curves
    from advbnn.evaluation.accuracy import CLEAN

    if attack == CLEAN and over != "ensemble":
        raise typer.BadParameter(f"a curve over {over} needs an attack, got 'clean'")
    if over != "radius" and not all(value.is_integer() for value in at or ()):
        raise typer.BadParameter(f"a curve over {over} takes whole numbers, got {', '.join(map(str, at or ()))}")
    refuse_impossible([] if attack == CLEAN else [attack], norm, steps, eot)
    refuse_larger_than_images(norm, [*([] if eps is None else [eps]), *(at or () if over == "radius" else ())])
    whole = [int(value) for value in at or ()]
    settings = {"seeds": seeds, "batch_size": batch_size, "engine": engine, "precision": precision}
    with open_run(run, device=device, limit=limit, out=out, last=last, **settings) as (trained, test, options, leads):
        # a curve over radii replaces the radius of the attack
        any_radius = over == "radius" or attack == CLEAN
        radius = eps if eps is not None else 1.0 if any_radius else training_radius(trained)
        chosen = None if attack == CLEAN else make_attack(attack, trained.model, Threat(norm, radius), steps, eot)
        options["name"] = attack if chosen is None or over in ("steps", "eot") else title(attack, chosen)
        if over == "ensemble" or chosen is None:
            records = curves.ensemble_curve(trained.model, test, chosen, whole or curves.ENSEMBLE_SIZES, **options)
        else:
            curves_over: dict[str, tuple[Callable[..., Records], Sequence[float]]] = {
                "radius": (curves.radius_curve, at or curves.RADII),
                "steps": (curves.steps_curve, whole or curves.STEPS),
                "eot": (curves.eot_curve, whole or curves.EOT_SAMPLES),
            }
            measure, values = curves_over[over]
            records = measure(trained.model, test, chosen, values, samples=samples, **options)
        if leads:
            show(records)
