"""advbnn transfer: attacks made on one run and tested on another, for all pairs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from advbnn.cli import options
from advbnn.errors import ArgumentError

_NAMES = [name for name in options.ATTACKS if name != "mean"]  # the source is always another network


def transfer(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders, all on the same data.")],
    eps: Annotated[float, options.numeric("RADIUS", "Such as 0.031 or 8/255.")],
    out: Annotated[Path, typer.Option(callback=options.file_to_write, help="The file of records.")],
    attack: Annotated[str, options.named(options.ATTACKS, f"{', '.join(_NAMES)}.")] = "paper",
    norm: options.Norm = "linf",
    steps: options.Steps = None,
    eot: options.Eot = 1,
    samples: options.Samples = 20,
    seeds: options.Seeds = 3,
    limit: options.Limit = None,
    batch_size: options.BatchSize = 250,
    device: options.Device = None,
    engine: options.Engine = "auto",
    precision: options.Precision = "full",
) -> None:
    """Measure how well attacks on each run transfer to the others: accuracies and affinity for all pairs of runs."""
    from rich.console import Console
    from rich.table import Table

    from advbnn.attacks.threat import Threat
    from advbnn.cli.attacks import make_attack, refuse_impossible
    from advbnn.cli.common import command_line, evaluation_processes, first_rows, label_of, show
    from advbnn.evaluation.transfer import affinity, transfer_matrix
    from advbnn.training.loading import load_trained

    refuse_impossible([attack], norm, steps, eot)
    options.refuse_larger_than_images(norm, [eps])
    if attack == "mean":
        problem = "mean attacks the mean network of one run; use advbnn evaluate RUN"
        raise typer.BadParameter(problem, param_hint="'--attack'")
    settings: dict[str, Any] = {"samples": samples, "seeds": seeds, "batch_size": batch_size}
    settings |= {"engine": engine, "precision": precision}
    with evaluation_processes(device) as (world, place):
        trained = {label_of(run): load_trained(run, device=place) for run in runs}
        if len(trained) != len(runs):
            raise ArgumentError(f"the names of the folders must differ, got {', '.join(map(str, runs))}")
        tests = [one.load_data().test for one in trained.values()]
        if len({test.fingerprint() for test in tests}) > 1:
            raise ArgumentError(f"the runs use different data: {', '.join(test.name for test in tests)}")
        first = next(iter(trained.values())).model
        records = transfer_matrix(
            {name: one.model for name, one in trained.items()},
            tests[0],
            make_attack(attack, first, Threat(norm, eps), steps, eot),
            rows=first_rows(tests[0], limit),
            out=out,
            progress=True,
            command=command_line(),
            **settings,
        )
        if world.leads:
            show(records)
            rho = affinity(records)
            table = Table("affinity", *(f"on {target}" for target in next(iter(rho.values()))), box=None)
            for source, targets in rho.items():
                table.add_row(f"from {source}", *("-" if one is None else f"{one:.2f}" for one in targets.values()))
            Console().print(table)
