"""advbnn evaluate: the accuracy of a network under attack."""

from pathlib import Path

import typer

from advbnn.cli import options
from advbnn.cli.groups import AttackOptions, Measurement, Subject
from advbnn.errors import ArgumentError


def evaluate(
    *,
    subject: Subject,
    attack: options.Attacks = None,
    eps: options.Radii = None,
    points: options.Points = None,
    effort: AttackOptions,
    how: Measurement,
) -> None:
    """Measure the accuracy of a run, or of a network of your own, under attack; under torchrun, on all processes.

    Records that are in the file already are not measured again, and an interrupted evaluation resumes.
    """
    from advbnn.attacks.threat import Threat
    from advbnn.cli.attacks import averaging, measured, refuse_impossible, weaknesses
    from advbnn.cli.common import open_run, show
    from advbnn.data.chance import chance_level
    from advbnn.data.imageset import row_numbers
    from advbnn.evaluation.accuracy import CLEAN, Evaluation
    from advbnn.evaluation.points import Points, check_cover

    names = attack or ([CLEAN] if points else [CLEAN, "pgd"])
    effort = effort if attack else averaging(effort)
    refuse_impossible(names, effort, eps or ())
    with open_run(subject, how) as (opened, test, shared, leads):
        given = [Points.load(file) for file in points or ()]
        for one in given:
            if one.threat is None and not eps:
                raise ArgumentError(f"{one.name} does not say for which radius its points were made; give --eps")
        radii = eps or ([opened.radius(effort.norm)] if {*names} - {CLEAN} else [])
        evaluation = Evaluation(opened.model, test, **shared)
        (records,) = measured([evaluation], names, radii, effort)
        for one in given:
            check_cover([one], row_numbers(evaluation.rows, len(test)))
            for threat in [Threat(effort.norm, radius) for radius in eps or ()] or filter(None, [one.threat]):
                for name, stored in one.on(test, threat).items():
                    records += evaluation.accuracy(f"{Path(one.name).stem}: {name}", stored)
        if leads:
            show(records, chance_level(test.targets, shared["rows"]))
            for note in weaknesses(records, evaluation):
                typer.echo(note, err=True)
