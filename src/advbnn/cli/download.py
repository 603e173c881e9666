"""advbnn data download: a published dataset."""

from pathlib import Path
from typing import Annotated

import typer


def download(
    name: Annotated[str, typer.Argument(help="cifar10 or stl10.")],
    root: Annotated[Path, typer.Option(help="The folder to save it in; training finds it by root or ADVBNN_DATA.")],
) -> None:
    """Download a dataset and verify its checksum; an interrupted download resumes."""
    from advbnn.data import fetch

    typer.echo(f"{fetch(name, root)} is complete and verified")
