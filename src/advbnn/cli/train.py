"""advbnn train: a run from a TOML file."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from advbnn.cli import options


def train(
    config: Annotated[Path, typer.Argument(help="The TOML file of the run; configs/ has one for each experiment.")],
    settings: options.Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; runs/ and the name of the TOML file by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint; start if there is none.")
    ] = False,
    device: options.Device = None,
) -> None:
    """Train a model with the settings of a TOML file; under torchrun, on all of its processes."""
    from advbnn.cli.common import device_or_first_gpu
    from advbnn.distributed import joined
    from advbnn.training.config import load_config
    from advbnn.training.interrupts import Interrupted
    from advbnn.training.loop import fit_config

    folder = out or Path("runs") / config.stem
    options.folder_to_write(folder)
    chosen = load_config(config, settings or ())
    splits = chosen.load_data()
    try:
        with joined(device_or_first_gpu(device)) as (_, place):
            fit_config(chosen, splits, out=folder, resume=resume, device=place)
    except Interrupted as stop:
        with suppress(OSError):  # the terminal or the pipe may be closed
            typer.echo(str(stop), err=True)
        raise typer.Exit(128 + (stop.signal or 2)) from None
