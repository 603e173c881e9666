"""advbnn tables: fills the tables of documents from records."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advbnn.errors import ArgumentError

if TYPE_CHECKING:
    from advbnn.report.elements import Table


def tables(
    documents: Annotated[
        list[Path], typer.Argument(help="Markdown files with blocks <!-- table: RECORDS/NAME --> ... <!-- end -->.")
    ],
    results: Annotated[Path, typer.Option(help="The folder of the records.")] = Path("results"),
    entries: Annotated[
        Path, typer.Option(help="The folder of the leaderboard, for <!-- table: entries/all --> and entries/attacks.")
    ] = Path("leaderboard"),
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
    changed = refresh(documents, results, others={"entries": lambda: tables_of_entries(entries)}, check=check)
    for document in documents:
        done = "out of date; run advbnn tables" if check else "refreshed"
        typer.echo(f"{document}: {done if document in changed else 'up to date'}")
    if check and changed:
        raise typer.Exit(1)


def tables_of_entries(folder: Path) -> "dict[str, Table]":
    from advbnn.leaderboard.attacks_table import attacks_table
    from advbnn.leaderboard.entry import load_all
    from advbnn.leaderboard.tables import table

    found = load_all(folder)
    return {"all": table(found), "attacks": attacks_table(found)}
