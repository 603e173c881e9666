"""advbnn tables: fills the tables of documents from records."""

from pathlib import Path
from typing import Annotated

import typer

from advbnn.errors import ArgumentError


def tables(
    documents: Annotated[
        list[Path], typer.Argument(help="Markdown files with blocks <!-- table: RECORDS/NAME --> ... <!-- end -->.")
    ],
    results: Annotated[Path, typer.Option(help="The folder of the records.")] = Path("results"),
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if a table differs from the records.")
    ] = False,
) -> None:
    """Fill the marked tables of documents from records."""
    from advbnn.machine.files import read_text
    from advbnn.paper.docs_tables import has_tables, refresh

    for document in documents:
        if not has_tables(read_text(document)):
            marks = "<!-- table: RECORDS/NAME --> and <!-- end -->"
            raise ArgumentError(f"{document} has no table to fill: mark its place with the lines {marks}")
    changed = refresh(documents, results, check=check)
    for document in documents:
        done = "out of date; run advbnn tables" if check else "refreshed"
        typer.echo(f"{document}: {done if document in changed else 'up to date'}")
    if check and changed:
        raise typer.Exit(1)
