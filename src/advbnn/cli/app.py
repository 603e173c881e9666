"""The command `advbnn` and its subcommands."""

import os
from typing import Annotated

import typer

from advbnn import __version__
from advbnn.cli.audit import audit
from advbnn.cli.compare import compare
from advbnn.cli.curve import curve
from advbnn.cli.download import download
from advbnn.cli.errors import Command, Group
from advbnn.cli.evaluate import evaluate
from advbnn.cli.groups import grouped
from advbnn.cli.leaderboard import COMMANDS
from advbnn.cli.play import play
from advbnn.cli.predict import predict
from advbnn.cli.report import report
from advbnn.cli.reproduce import reproduce
from advbnn.cli.table import table
from advbnn.cli.tables import tables
from advbnn.cli.train import train
from advbnn.cli.transfer import transfer
from advbnn.cli.uncertainty import uncertainty
from advbnn.machine.caches import keep_bytecode
from advbnn.machine.memory import reuse_memory

app = typer.Typer(name="advbnn", cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
_MEASURE = (evaluate, audit, compare, curve, transfer, uncertainty, predict, play)
for command in (train, *_MEASURE, report, table, tables, reproduce):
    app.command(cls=Command)(grouped(command))

data = typer.Typer(no_args_is_help=True, help="Download datasets from their publishers.")
data.command(cls=Command)(download)
app.add_typer(data, name="data")

leaderboard = typer.Typer(no_args_is_help=True, help="The leaderboard of randomized defences: entries and their page.")
for command in COMMANDS:
    leaderboard.command(cls=Command)(grouped(command))
app.add_typer(leaderboard, name="leaderboard")


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"advbnn {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train Bayesian neural networks against adversarial examples, and measure how robust they are."""
    # before torch is loaded: threads that wait then sleep instead of spinning, so that busy cores do not slow them down
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    keep_bytecode()
    reuse_memory()
