"""advbnn curve: the accuracy of a run as a function of one quantity."""

from typing import Annotated

import typer

from advbnn.cli import options

OVER = ("radius", "ensemble", "steps", "eot")


def curve(
    run: options.Run,
    over: Annotated[
        str, typer.Argument(parser=options.one_of(OVER), metavar="over", help="radius, ensemble, steps or eot.")
    ],
    at: Annotated[
        list[float] | None, options.numeric("NUMBER", "A value. May be repeated; the values of the paper by default.")
    ] = None,
    attack: Annotated[str, options.named(("clean", *options.ATTACKS), "{names}; clean only for ensemble.")] = "paper",
    eps: Annotated[float | None, options.numeric("RADIUS", "Such as 8/255; the radius of training by default.")] = None,
    norm: options.Norm = "linf",
    steps: options.Steps = None,
    eot: options.Eot = 1,
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
    """Measure the accuracy of a run over the radius, the size of the ensemble, or the attack's steps or EOT samples."""
    from advbnn.attacks.threat import Threat
    from advbnn.cli.attacks import make_attack, refuse_impossible, title
    from advbnn.cli.common import open_run, show, training_radius
    from advbnn.evaluation import curves
    from advbnn.evaluation.accuracy import CLEAN

    if attack == CLEAN and over != "ensemble":
        raise typer.BadParameter(f"a curve over {over} needs an attack, got 'clean'", param_hint="'--attack'")
    counts = [] if over == "radius" else [options.whole(f"{value:.17g}", "'--at'") for value in at or ()]
    refuse_impossible([] if attack == CLEAN else [attack], norm, steps, eot)
    options.refuse_larger_than_images(norm, [] if eps is None else [eps])
    options.refuse_larger_than_images(norm, at or () if over == "radius" else (), "--at")
    settings = {"seeds": seeds, "batch_size": batch_size, "engine": engine, "precision": precision}
    with open_run(run, device=device, limit=limit, out=out, last=last, **settings) as (trained, test, shared, leads):
        # a curve over radii replaces the radius of the attack
        any_radius = over == "radius" or attack == CLEAN
        radius = eps if eps is not None else 1.0 if any_radius else training_radius(trained, norm)
        chosen = None if attack == CLEAN else make_attack(attack, trained.model, Threat(norm, radius), steps, eot)
        shared["name"] = attack if chosen is None or over in ("steps", "eot") else title(attack, chosen)
        if over != "ensemble":
            shared["samples"] = samples
        values = [counts or at] if at else []
        records = getattr(curves, f"{over}_curve")(trained.model, test, chosen, *values, **shared)
        if leads:
            show(records)
