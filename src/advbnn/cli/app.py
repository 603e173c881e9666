"""The command `advbnn` and its subcommands."""

from pathlib import Path
from typing import Annotated

import typer

from advbnn.cli.audit import audit
from advbnn.cli.curve import curve
from advbnn.cli.evaluate import evaluate
from advbnn.cli.predict import predict
from advbnn.cli.report import report
from advbnn.cli.reproduce import reproduce
from advbnn.cli.tables import tables
from advbnn.cli.train import train
from advbnn.cli.transfer import transfer
from advbnn.cli.uncertainty import uncertainty
from advbnn.errors import ArgumentError

app = typer.Typer(name="advbnn", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
for command in (train, evaluate, audit, curve, transfer, uncertainty, predict, report, tables, reproduce):
    app.command()(command)

data = typer.Typer(no_args_is_help=True, help="Get datasets from their publishers.")
app.add_typer(data, name="data")


@data.command()
def download(
    name: Annotated[str, typer.Argument(help="cifar10 or stl10.")],
    root: Annotated[Path, typer.Option(help="The folder to put it in; give it to training as root or ADVBNN_DATA.")],
) -> None:
    """Download a dataset, with resumption and checksum."""
    from advbnn.cli.common import explaining_errors
    from advbnn.data import fetch

    with explaining_errors():
        if root.exists() and not root.is_dir():
            raise ArgumentError(f"{root} is a file; give --root a folder, which need not exist")
        where = fetch(name, root)
    typer.echo(f"{where} is complete and verified")


def _show_version(wanted: bool) -> None:
    if wanted:
        import advbnn

        typer.echo(f"advbnn {advbnn.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train Bayesian neural networks that resist adversarial examples, and find out whether they do."""
