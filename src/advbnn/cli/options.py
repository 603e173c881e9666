"""The options that several commands share. What cannot be meant is refused as it is read, before anything is loaded."""

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from advbnn.attacks import registry

ATTACKS = tuple(registry.ATTACKS)
_NOTES = ", ".join(f"{name} ({entry.note})" if entry.note else name for name, entry in registry.ATTACKS.items())

# The library has these too, but it takes torch to ask it.
NORMS = ("linf", "l2", "l1")
LEVELS = ("quick", "standard", "thorough")
ENGINES = ("auto", "eager", "compile", "graph")
PRECISIONS = ("full", "bf16")


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Reads one of these names, and says of any other which of them is nearest."""

    def parse(text: str) -> str:
        if text not in names:
            from advbnn.errors import unknown

            raise typer.BadParameter(str(unknown("name", text, names)))
        return text

    return parse


def number(text: str) -> float:
    """Reads a number of 0 or more as people type it: 0.031, 8/255 or inf."""
    try:
        value = float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        value = -1.0
    if not value >= 0:
        raise typer.BadParameter(f"{text!r} is not a number of 0 or more, such as 0.031 or 8/255")
    return value


def refuse_larger_than_images(norm: str, radii: Sequence[float]) -> None:
    """A linf radius above 1 allows every image, as pixels lie in [0, 1]; who means that says inf."""
    for radius in radii:
        if norm == "linf" and 1 < radius < math.inf:
            raise typer.BadParameter(
                f"a linf radius of {radius:g} allows every image, as pixels lie in 0 to 1; do you mean {radius:g}/255?"
            )


def file_to_write(path: Path | None) -> Path | None:
    """The file that --out names, if it can be one; None as it is, and a file that is there, which may be complete."""
    if path is not None and not os.path.isfile(path):
        if os.path.isdir(path):
            raise typer.BadParameter(f"{path} is a folder; give --out a file, such as {path / 'records.json'}")
        _refuse_unwritable(path, path.parent)
    return path


def folder_to_write(path: Path | None) -> Path | None:
    """The folder that --out names, if it can be one; None as it is."""
    if path is not None:
        if os.path.lexists(path) and not os.path.isdir(path):
            what = "a file" if os.path.exists(path) else "a link to nowhere"
            raise typer.BadParameter(f"{path} is {what}; give --out a folder, which need not exist")
        _refuse_unwritable(path, path)
    return path


def _refuse_unwritable(path: Path, folder: Path) -> None:
    """Nothing is left behind by the attempt."""
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.stat(path)
    except OSError as error:  # a name that is too long, or a folder that may not be entered
        raise typer.BadParameter(f"{path} cannot be written ({error.strerror}); give --out another place") from None
    nearest = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        reason = f"{nearest} is a file" if nearest.is_file() else f"nothing can be written in {nearest}"
        raise typer.BadParameter(
            f"{path} cannot be written: {reason} ({error.strerror}); give --out another place"
        ) from None


def named(names: Sequence[str], help: str) -> Any:
    """An option that takes one of these names."""
    return typer.Option(parser=one_of(names), metavar="NAME", help=help)


def numeric(metavar: str, help: str) -> Any:
    """An option that takes a number of 0 or more, also as a fraction."""
    return typer.Option(parser=number, metavar=metavar, help=help)


Attacks = Annotated[
    list[str] | None,
    named(
        ("clean", *ATTACKS),
        f"clean, {_NOTES}. May be repeated; clean and paper if left out.",
    ),
]
Radii = Annotated[
    list[float] | None,
    numeric("RADIUS", "Such as 0.031 or 8/255. May be repeated; the radius of training if left out."),
]
Norm = Annotated[str, named(NORMS, "linf, l2 or l1.")]
Steps = Annotated[int | None, typer.Option(help="Steps of the attacks; each has its own default.")]
Eot = Annotated[int, typer.Option(help="Draws that every gradient or query is averaged over.")]
Samples = Annotated[int, typer.Option(help="Draws of the network that make up the classifier.")]
Seeds = Annotated[int, typer.Option(help="Repetitions, each with randomness of its own.")]
Limit = Annotated[int | None, typer.Option(help="Only the first so many test images.")]
BatchSize = Annotated[int, typer.Option(help="Images attacked at a time.")]
Out = Annotated[
    Path | None, typer.Option(callback=file_to_write, help="The file of records; records.json in the run if left out.")
]
Last = Annotated[
    bool, typer.Option("--last", help="With early stopping: the weights of the last epoch, in place of the best.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; the first GPU if there is one.")]
Engine = Annotated[str, named(ENGINES, "How the network runs: auto, eager, compile or graph.")]
Precision = Annotated[
    str, named(PRECISIONS, "full, that of the weights; or bf16, which is faster and not for figures to be published.")
]
