"""Options that several commands share. Impossible values are refused before anything is loaded."""

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
from advbnn.errors import MOST, positive_whole, shown, unknown
from advbnn.names import ENGINES, NORMS, PRECISIONS, RULES

DEFAULT_EOT = 10
"""EOT samples of attacks that a command chooses itself."""

ATTACKS = tuple(registry.ATTACKS)
_NOTES = ", ".join(f"{name} ({entry.note})" if entry.note else name for name, entry in registry.ATTACKS.items())


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """A parser for one of these names."""

    def parse(text: str) -> str:
        if text not in names:
            raise typer.BadParameter(str(unknown("name", text, names)))
        return text

    return parse


def number(text: str) -> float:
    """Parses a number of 0 or more, such as 0.031, 8/255 or inf."""
    try:
        value = float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        value = -1.0
    if not (0 <= value <= 1e30 or text in ("inf", math.inf)):
        raise typer.BadParameter(f"{shown(text)} is not a number from 0 to 1e30, such as 0.031 or 8/255, or inf")
    return value


def whole(text: str | int, hint: str | None = None) -> int:
    """Parses a positive whole number, with a bound; `hint` names the option in messages."""
    try:
        return positive_whole("it", int(text))
    except ValueError:
        problem = f"{shown(text)} is not a whole number from 1 to {MOST:,}"
        raise typer.BadParameter(problem, param_hint=hint) from None


def refuse_larger_than_images(norm: str, radii: Sequence[float], option: str = "--eps") -> None:
    """Refuses a finite linf radius above 1, which allows every image, as pixels lie in [0, 1]."""
    for radius in radii:
        if norm == "linf" and 1 < radius < math.inf:
            problem = f"a linf radius of {radius:g} puts every image inside the ball; did you mean {radius:g}/255?"
            raise typer.BadParameter(problem, param_hint=f"'{option}'")


def file_to_write(path: Path | None, option: str = "--out", example: str = "records.json") -> Path | None:
    """Refuses a file that cannot be written. An existing file passes: its records may be complete."""
    if path is not None and not os.path.isfile(path):
        if os.path.isdir(path):
            raise typer.BadParameter(f"{path} is a folder; give {option} a file, such as {path / example}")
        if os.path.exists(path):
            raise typer.BadParameter(f"{path} is a device or a pipe; give {option} a file, such as {example}")
        _refuse_unwritable(path, path.parent, option)
    return path


def folder_to_write(path: Path | None, option: str = "--out") -> Path | None:
    """Refuses a folder that cannot be written; it need not exist."""
    if path is not None:
        if os.path.exists(path) and not os.path.isdir(path):
            raise typer.BadParameter(f"{path} is a file; give {option} a folder, which need not exist")
        _refuse_unwritable(path, path, option)
    return path


def _refuse_unwritable(path: Path, folder: Path, option: str) -> None:
    """Tries to write in the nearest existing folder and leaves nothing behind."""
    nearest = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.stat(path)  # refuses a name that is too long, or a folder that may not be entered
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        problem = f"{path} cannot be written (in {nearest}: {error.strerror})"
        raise typer.BadParameter(f"{problem}; give {option} another place") from None


def checked(check: Callable[..., Path | None], *names: str) -> Callable[[Path | None], Path | None]:
    """`file_to_write` or `folder_to_write` as the callback of an option, with its name and an example if not --out."""
    return lambda path: check(path, *names)


def named(names: Sequence[str], help: str = "{names}.") -> Any:
    """An option that takes one of these names; `{names}` in the help is their list."""
    text = help.format(names=f"{', '.join(names[:-1])} or {names[-1]}")
    return typer.Option(parser=one_of(names), metavar="NAME", help=text)


def count(help: str) -> Any:
    """An option that takes a positive whole number."""
    return typer.Option(parser=whole, metavar="N", help=help)


def numeric(metavar: str, help: str) -> Any:
    """An option that takes a number of 0 or more, also as a fraction."""
    return typer.Option(parser=number, metavar=metavar, help=help)


def local_jobs(jobs: int | None, cluster: str | None) -> int | None:
    """The processes to start on this machine: one, if the workers of a cluster do the work."""
    if jobs is not None and cluster is not None:
        raise typer.BadParameter("--cluster has workers of its own; leave out --jobs", param_hint="'--jobs'")
    return jobs if cluster is None else 1


Attacks = Annotated[
    list[str] | None,
    named(
        ("clean", *ATTACKS),
        f"clean, {_NOTES}. May be repeated; clean and pgd with {DEFAULT_EOT} EOT samples if left out.",
    ),
]
Radii = Annotated[
    list[float] | None, numeric("RADIUS", "Such as 8/255. May be repeated; the radius of training by default.")
]
Norm = Annotated[str, named(NORMS)]
Steps = Annotated[int | None, count("Steps of the attacks; each has its own default.")]
Eot = Annotated[
    int | None, count("EOT samples: weight samples averaged for every gradient or query; 1 for attacks that are named.")
]
Samples = Annotated[int, count("Weight samples that the classifier averages.")]
Seeds = Annotated[int, count("Repetitions with independent randomness.")]
Limit = Annotated[int | None, count("Use only the first N test images.")]
BatchSize = Annotated[int, count("Images attacked at a time.")]
Out = Annotated[
    Path | None,
    typer.Option(callback=checked(file_to_write), help="The file of records; records.json in the run by default."),
]
Points = Annotated[
    list[Path] | None,
    typer.Option(
        "--points",
        "--adversarial",  # as advbnn leaderboard rescore calls it
        help="A safetensors file of adversarial images, scored too. May be repeated.",
    ),
]
ABOUT = typer.Option(
    help="What the records do not say for an entry of the leaderboard, as TOML; see docs/leaderboard.md."
)
Baseline = Annotated[
    Path | None, typer.Option(help="Records of the audit of the baseline, on the same images at the same level.")
]
Entries = Annotated[
    Path | None,
    typer.Option(
        callback=checked(folder_to_write, "--entries"),
        help="The folder for the entry; RUN, or the current one, by default.",
    ),
]
Last = Annotated[
    bool, typer.Option("--last", help="With early stopping: use the weights of the last epoch instead of the best.")
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact/--no-exact",
        help="Classify by the mean over all members of a mixture of a few networks, or by --samples of them at random.",
    ),
]
Rule = Annotated[str, named(RULES, "How the outputs of the weight samples become a label: {names}.")]
Root = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="The folder with the files of a named data set; that of the run, or ADVBNN_DATA, by default.",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Measure again what the file holds with other settings, and replace it.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; the first GPU, if any, by default.")]
Jobs = Annotated[int | None, count("Processes on this machine; default one per GPU, or two on the CPU.")]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="A Dask scheduler, such as tcp://10.0.0.1:8786: its workers do the work."),
]
Engine = Annotated[str, named(ENGINES, "How the model runs: {names}.")]
Gradients = Annotated[
    str | None, named(PRECISIONS, "The precision of attacks' gradients: {names}; that of --precision by default.")
]
Precision = Annotated[str, named(PRECISIONS, "{names}; bf16 is faster and not for published numbers.")]
