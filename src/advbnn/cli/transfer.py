"""advbnn transfer: attacks made on one network and tested on another, for all pairs."""

from pathlib import Path
from typing import Annotated

import typer

from advbnn.cli import options
from advbnn.cli.groups import AttackOptions, Measurement, Subjects

_NAMES = [name for name in options.ATTACKS if name != "mean"]  # the source is always another network


def transfer(
    *,
    subjects: Subjects,
    eps: Annotated[float, options.numeric("RADIUS", "Such as 0.031 or 8/255.")],
    attack: Annotated[str, options.named(options.ATTACKS, f"{', '.join(_NAMES)}.")] = "paper",
    effort: AttackOptions,
    how: Measurement,
) -> None:
    """Measure how well attacks on each network transfer to the others: accuracies and affinity for all pairs."""
    from rich.table import Table

    from advbnn.cli.attacks import make_attack, refuse_impossible
    from advbnn.cli.common import command_line, console, evaluation_processes, first_rows, open_all, show
    from advbnn.evaluation.transfer import affinity, transfer_matrix

    refuse_impossible([attack], effort, [eps])
    if attack == "mean":
        problem = "mean attacks the mean network of one run; use advbnn evaluate RUN"
        raise typer.BadParameter(problem, param_hint="'--attack'")
    chosen = subjects.each()
    out = how.out or options.file_to_write(Path("transfer.json"))
    with evaluation_processes(how.device) as (world, place):
        opened, test = open_all(chosen, place, world.leads)
        records = transfer_matrix(
            {one.label: one.model for one in opened},
            test,
            make_attack(attack, opened[0].model, effort, eps),
            rows=first_rows(test, how.limit),
            out=out,
            progress=True,
            command=command_line(),
            **how.settings(),
        )
        if world.leads:
            show(records)
            rho = affinity(records)
            table = Table("affinity", *(f"on {target}" for target in next(iter(rho.values()))), box=None)
            for source, targets in rho.items():
                table.add_row(f"from {source}", *("-" if one is None else f"{one:.2f}" for one in targets.values()))
            console().print(table)
