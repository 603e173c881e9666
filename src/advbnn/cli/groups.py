"""Groups of options that several commands share: what is evaluated, by which attacks, and how.

A parameter of a command that is a group becomes one option per field: see `grouped`.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from advbnn.cli import options

_MODEL = "A network of your own: a Python file, which is executed, and its function that returns the network."
_WEIGHTS = "A safetensors file with the weights of --model."
_DATA = "With --model: digits, cifar10, stl10, imagenet143, or an image folder, whose test images are used."
_SIZE = "With --model and an image folder: the side of the images in pixels."


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer takes it: each parameter that is a group is replaced by its fields."""
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: p.annotation for name, p in parameters.items() if is_dataclass(p.annotation)}
    flat: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        if name not in groups:
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            kind = inspect.Parameter.KEYWORD_ONLY
            flat.append(inspect.Parameter(field.name, kind, default=default, annotation=hints[field.name]))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**given, **made)

    del run.__wrapped__  # whose signature would be taken for this one
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return run


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is evaluated: a run, or a network of one's own on a data set."""

    run: Annotated[Path | None, typer.Argument(help="A run folder; left out with --model.")] = None
    model: Annotated[str | None, typer.Option(metavar="FILE.py:FUNCTION", help=_MODEL)] = None
    weights: Annotated[Path | None, typer.Option(help=_WEIGHTS)] = None
    data: Annotated[str | None, typer.Option(help=_DATA)] = None
    size: Annotated[int | None, options.count(_SIZE)] = None
    root: options.Root = None
    last: options.Last = False

    def check(self) -> None:
        """Refuses what names no subject, or two."""
        if (self.run is None) == (self.model is None):
            came = "neither" if self.run is None else f"both, the folder {str(self.run)!r}"
            raise typer.BadParameter(f"give a run folder, or --model FILE.py:FUNCTION with --data; got {came}")
        if self.model is not None and self.data is None:
            raise typer.BadParameter("--model needs --data: the name of a data set or an image folder")
        if self.model is not None and self.last:
            raise typer.BadParameter("--last is for runs with early stopping; leave it out with --model")
        given = {"weights": self.weights, "data": self.data, "size": self.size}
        for name, value in given.items():
            if self.model is None and value is not None:
                raise typer.BadParameter(f"--{name} goes with --model; a run has its own, so leave --{name} out")

    def shifted(self) -> tuple["Subject", str | None]:
        """With --model, the first argument is not a run: the subject without it, and the argument."""
        if self.model is None or self.run is None:
            return self, None
        return replace(self, run=None), str(self.run)


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """Several runs or networks of one's own, all on the same data."""

    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders, all on the same data.")] = None
    model: Annotated[list[str] | None, typer.Option(metavar="FILE.py:FUNCTION", help=f"{_MODEL} May be repeated.")] = (
        None
    )
    weights: Annotated[list[Path] | None, typer.Option(help=f"{_WEIGHTS} One for each --model, in their order.")] = None
    data: Annotated[str | None, typer.Option(help=_DATA)] = None
    size: Annotated[int | None, options.count(_SIZE)] = None
    root: options.Root = None

    def each(self) -> list[Subject]:
        """The subjects, checked: runs first."""
        models, weights = self.model or [], self.weights or []
        if weights and len(weights) != len(models):
            raise typer.BadParameter(f"give one --weights for each --model, got {len(weights)} for {len(models)}")
        if not models and (self.data is not None or self.size is not None):
            raise typer.BadParameter("--data goes with --model; runs have their own, so leave it out")
        shared: dict[str, Any] = {"data": self.data, "size": self.size, "root": self.root}
        own = [
            Subject(model=model, weights=weights[number] if weights else None, **shared)
            for number, model in enumerate(models)
        ]
        subjects = [*(Subject(run=run, root=self.root) for run in self.runs or ()), *own]
        for subject in subjects:
            subject.check()
        return subjects


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    """Norm and effort of the chosen attacks."""

    norm: options.Norm = "linf"
    steps: options.Steps = None
    eot: options.Eot = None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """How a measurement is made and where its records go: the keyword arguments of an evaluation."""

    samples: options.Samples = 20
    exact: options.Exact = True
    rule: options.Rule = "probability"
    seeds: options.Seeds = 3
    limit: options.Limit = None
    batch_size: options.BatchSize = 250
    out: options.Out = None
    device: options.Device = None
    engine: options.Engine = "auto"
    precision: options.Precision = "full"
    gradients: options.Gradients = None
    overwrite: options.Overwrite = False

    def settings(self) -> dict[str, Any]:
        """What an `Evaluation` takes as it is."""
        names = ("samples", "exact", "rule", "seeds", "batch_size", "engine", "precision", "gradients", "overwrite")
        return {name: getattr(self, name) for name in names}
