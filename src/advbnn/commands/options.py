"""The options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Norm = Annotated[str, typer.Option(help="linf, l2 or l1.")]
Steps = Annotated[int | None, typer.Option(help="Steps of the attacks; each has its own default.")]
Eot = Annotated[int, typer.Option(help="Draws that every gradient or query is averaged over.")]
Samples = Annotated[int, typer.Option(help="Draws of the network that make up the classifier.")]
Seeds = Annotated[int, typer.Option(help="Repetitions, each with randomness of its own.")]
Limit = Annotated[int | None, typer.Option(help="Only the first so many test images.")]
BatchSize = Annotated[int, typer.Option(help="Images attacked at a time.")]
Out = Annotated[Path | None, typer.Option(help="The file of records; records.json in the run if left out.")]
Last = Annotated[
    bool, typer.Option("--last", help="With early stopping: the weights of the last epoch, in place of the best.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; the first GPU if there is one.")]
Engine = Annotated[str, typer.Option(help="How the network runs: auto, eager, compile or graph.")]
Precision = Annotated[
    str, typer.Option(help="full, that of the weights; or bf16, which is faster and not for figures to be published.")
]
