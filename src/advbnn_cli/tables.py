"""advbnn tables: the tables of documents, made anew from records."""

from pathlib import Path
from typing import Annotated

import typer


def tables(
    documents: Annotated[
        list[Path], typer.Argument(help="Markdown files with blocks <!-- table: RECORDS/NAME --> ... <!-- end -->.")
    ],
    results: Annotated[Path, typer.Option(help="The folder of the records.")] = Path("results"),
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if a table is not what the records say.")
    ] = False,
) -> None:
    """Fill the marked tables of documents from records."""
    from advbnn.report.blocks import has_tables, refresh
    from advbnn_cli.judging import explaining_errors, refuse_missing

    with explaining_errors():
        refuse_missing(documents)
        for document in documents:
            try:
                text = document.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{document} is no text: {error}; give a markdown file") from None
            if not has_tables(text):
                raise ValueError(
                    f"{document} has no table to fill: mark its place by two lines of their own, "
                    "<!-- table: RECORDS/NAME --> and <!-- end -->"
                )
        changed = refresh(documents, results, check=check)
        for document in documents:
            done = "out of date; run advbnn tables" if check else "refreshed"
            typer.echo(f"{document}: {done if document in changed else 'up to date'}")
        if check and changed:
            raise typer.Exit(1)
