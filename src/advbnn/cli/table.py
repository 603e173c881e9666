"""advbnn table: a table of a report, or its picture, for a paper."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.cli import options
from advbnn.errors import ArgumentError, one_of

if TYPE_CHECKING:
    from advbnn.report.elements import Contents, Table
    from advbnn.report.picture import Picture

FORMATS = ("markdown", "latex", "csv")
FIGURES = (".svg", ".pdf", ".png")


def table(
    sources: Annotated[
        list[Path], typer.Argument(help="Run folders with records, files of records, or the folder of a reproduction.")
    ],
    format: Annotated[str, options.named(FORMATS, "How to print it: {names}. LaTeX needs the package booktabs.")] = (
        "markdown"
    ),
    name: Annotated[
        str | None, typer.Option(help="Another table of the report, such as attack_suite; the first one by default.")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            callback=options.checked(options.file_to_write, "--figure", "figure.png"),
            help="Also write the picture to this .svg, .pdf or .png file.",
        ),
    ] = None,
) -> None:
    """Print a table of a report with its caption: images, seeds, attacks and intervals. Measures nothing."""
    if figure is not None and figure.suffix not in FIGURES:
        raise typer.BadParameter(f"--figure {figure} must end in {', '.join(FIGURES)}", param_hint="'--figure'")
    contents, first = _contents(sources)
    found: dict[str, Table] = contents.tables()
    chosen = name or first
    one_of("--name", chosen, found)
    typer.echo(getattr(found[chosen], format)(), nl=False)
    if figure is not None:
        _save(contents.pictures, figure)


def _contents(sources: list[Path]) -> "tuple[Contents, str]":
    """The report of the sources, and the name of its first table."""
    from advbnn.cli.report import collected
    from advbnn.paper.evidence import Evidence
    from advbnn.paper.experiment import FILE
    from advbnn.paper.tables import table1
    from advbnn.report.compose import compose
    from advbnn.report.style import defenses_in

    if len(sources) == 1 and (sources[0] / FILE).is_file():
        evidence = Evidence.read(sources[0])
        return compose(evidence.records, defenses_in(sources[0]), table=table1(evidence)), "table1"
    records, defenses = collected(sources)
    return compose(records, defenses), "headline"


def _save(pictures: "tuple[Picture, ...]", path: Path) -> None:
    if not pictures:
        raise ArgumentError("there is no picture, as nothing was attacked; leave --figure out, or measure an attack")
    for picture in pictures:
        norm = picture.name.rpartition("-")[2]
        file = path if len(pictures) == 1 else path.with_name(f"{path.stem}-{norm}{path.suffix}")
        picture.save(file)
        typer.echo(f"{file}: {picture.caption}", err=True)
