"""The command `advbnn`: one function of `advbnn.commands` for each subcommand."""

from pathlib import Path
from typing import Annotated

import typer

import advbnn
from advbnn.commands.audit import audit
from advbnn.commands.curve import curve
from advbnn.commands.evaluate import evaluate
from advbnn.commands.predict import predict
from advbnn.commands.report import report
from advbnn.commands.reproduce import reproduce
from advbnn.commands.tables import tables
from advbnn.commands.train import train
from advbnn.commands.transfer import transfer

app = typer.Typer(name="advbnn", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
for command in (train, evaluate, audit, curve, transfer, predict, report, tables, reproduce):
    app.command()(command)

data = typer.Typer(no_args_is_help=True, help="Get datasets from their publishers.")
app.add_typer(data, name="data")


@data.command()
def download(
    name: Annotated[str, typer.Argument(help="cifar10 or stl10.")],
    root: Annotated[Path, typer.Option(help="The folder to put it in; give it to training as root or ADVBNN_DATA.")],
) -> None:
    """Download a dataset, with resumption and checksum."""
    try:
        where = advbnn.data.fetch(name, root)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{where} is complete and verified")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"advbnn {advbnn.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train Bayesian neural networks that resist adversarial examples, and find out whether they do."""
