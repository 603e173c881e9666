"""The command `advbnn`. Each subcommand imports what it needs when it runs, so that `--help` is instant."""

import typer

import advbnn

app = typer.Typer(
    name="advbnn",
    help="Train Bayesian neural networks that resist adversarial examples, and find out whether they do.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"advbnn {advbnn.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Train Bayesian neural networks that resist adversarial examples, and find out whether they do."""


@app.command()
def demo() -> None:
    """Train a plain network and an Adv-BNN on handwritten digits, attack both, and show what is left."""
    from advbnn.commands.demo import demo

    demo()
