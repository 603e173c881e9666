"""advbnn curve: the accuracy of a network as a function of one quantity."""

from collections.abc import Sequence
from typing import Annotated

import typer

from advbnn.cli import options
from advbnn.cli.groups import AttackOptions, Measurement, Subject

OVER = ("radius", "ensemble", "steps", "eot")


def curve(
    *,
    subject: Subject,
    over: Annotated[
        str | None, typer.Argument(parser=options.one_of(OVER), metavar="over", help="radius, ensemble, steps or eot.")
    ] = None,
    at: Annotated[
        list[float] | None,
        options.numeric(
            "NUMBER", "A value. May be repeated; the paper's by default, radii scaled to that of training."
        ),
    ] = None,
    attack: Annotated[str, options.named(("clean", *options.ATTACKS), "{names}; clean only for ensemble.")] = "paper",
    eps: Annotated[float | None, options.numeric("RADIUS", "Such as 8/255; the radius of training by default.")] = None,
    effort: AttackOptions,
    how: Measurement,
) -> None:
    """Measure the accuracy over the radius, the size of the ensemble, or the attack's steps or EOT samples."""
    from advbnn.cli.attacks import make_attack, refuse_impossible, title
    from advbnn.cli.common import open_run, show
    from advbnn.evaluation import curves
    from advbnn.evaluation.accuracy import CLEAN

    if subject.model is not None and subject.run is not None and over is not None:
        raise typer.BadParameter(f"give a run folder or --model, not both; got {subject.run} and {subject.model}")
    subject, first = subject.shifted()
    over = options.one_of(OVER)(first) if first is not None else over
    if over is None:
        raise typer.BadParameter(f"OVER is missing: say what varies, {', '.join(OVER)}")
    if attack == CLEAN and over != "ensemble":
        raise typer.BadParameter(f"a curve over {over} needs an attack, got 'clean'", param_hint="'--attack'")
    if over == "radius" and eps is not None:
        raise typer.BadParameter("a curve over the radius has several; give them as --at", param_hint="'--eps'")
    counts = [] if over == "radius" else [options.whole(f"{value:.17g}", "'--at'") for value in at or ()]
    refuse_impossible([attack], effort, [] if eps is None else [eps])
    options.refuse_larger_than_images(effort.norm, at or () if over == "radius" else (), "--at")
    with open_run(subject, how) as (opened, test, shared, leads):
        # a curve over radii replaces the radius of the attack
        any_radius = over == "radius" or attack == CLEAN
        radius = eps if eps is not None else 1.0 if any_radius else opened.radius(effort.norm)
        chosen = None if attack == CLEAN else make_attack(attack, opened.model, effort, radius)
        shared["name"] = attack if chosen is None or over in ("steps", "eot") else title(attack, chosen)
        if over == "ensemble":
            del shared["samples"]
        values: list[Sequence[float]] = [counts or at] if at else []
        if over == "radius" and not at and opened.threat is not None:
            values = [curves.radii_for(opened.threat.eps)]
        records = getattr(curves, f"{over}_curve")(opened.model, test, chosen, *values, **shared)
        if leads:
            show(records)
