"""Tables in documents, made from records, so that no number in them is typed by hand.

A document marks where a table stands: `<!-- table: digits/headline -->`, the table, `<!-- end -->`. What comes before
the slash is a file of records, `digits.json`, or a folder of such files, `digits`; what follows is the name of one of
the tables of their report. The folder of a reproduction has two tables more: `table1` and `claims`. Several such
folders side by side, `cifar10+digits/verdicts`, have one.
"""

import re
from functools import cache
from pathlib import Path

from advbnn.errors import ArgumentError, unknown
from advbnn.evaluation.records import Records
from advbnn.files import write_atomically
from advbnn.paper.claims import check_claims
from advbnn.paper.evidence import Evidence
from advbnn.paper.experiment import FILE as REPRODUCTION
from advbnn.paper.tables import claims_table, table1, verdicts_table
from advbnn.report.compose import compose
from advbnn.report.elements import Table
from advbnn.report.style import defenses_in

_START = re.compile(r"^<!-- table: (\S+) -->$", re.MULTILINE)
_BLOCK = re.compile(r"^<!-- table: (?P<name>\S+) -->$(?P<content>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


def has_tables(text: str) -> bool:
    """Whether a document marks any place for a table."""
    return _START.search(text) is not None


def refreshed(text: str, results: Path) -> str:
    """The text with every marked table made anew.

    Args:
        text: a markdown document.
        results: the folder of the records.
    """
    tables = cache(lambda records: _tables(results, records))

    def block(found: re.Match[str]) -> str:
        if _START.search(found["content"]):
            raise ArgumentError(f"the table {found['name']} has no <!-- end --> before the next one begins")
        records, _, name = found["name"].partition("/")
        if name not in tables(records):
            raise unknown(f"table of {records}", name, tables(records))
        return f"<!-- table: {found['name']} -->\n\n{tables(records)[name].markdown()}\n<!-- end -->"

    blocks = len(_BLOCK.findall(text))
    fresh = _BLOCK.sub(block, text)
    if blocks < len(_START.findall(text)):
        last = _START.findall(text)[-1]
        raise ArgumentError(
            f"the table {last} has no <!-- end -->; write it, on a line of its own, where the table ends"
        )
    return fresh


def refresh(documents: list[Path], results: Path, *, check: bool = False) -> list[Path]:
    """Makes the marked tables of documents anew, and says which documents were out of date.

    Args:
        documents: markdown files.
        results: the folder of the records.
        check: only look, and change nothing.
    """
    texts = {document: document.read_text(encoding="utf-8") for document in documents}
    fresh = {document: _explained(document, text, results) for document, text in texts.items()}
    changed = [document for document in documents if fresh[document] != texts[document]]
    if not check:
        for document in changed:
            write_atomically(document, fresh[document].encode())
    return changed


def _explained(document: Path, text: str, results: Path) -> str:
    try:
        return refreshed(text, results)
    except ValueError as error:
        raise ArgumentError(f"{document}: {error}") from error


def _tables(results: Path, name: str) -> dict[str, Table]:
    if "+" in name:
        return {
            "verdicts": verdicts_table({one: check_claims(Evidence.read(results / one)) for one in name.split("+")})
        }
    folder, file = results / name, results / f"{name}.json"
    if (folder / REPRODUCTION).is_file():
        evidence = Evidence.read(folder)
        made = compose(evidence.records, defenses=defenses_in(folder)).tables()
        return {**made, "table1": table1(evidence), "claims": claims_table(check_claims(evidence))}
    files = sorted(folder.glob("*.json")) if folder.is_dir() else [file]
    if not all(path.is_file() for path in files) or not files:
        raise ArgumentError(f"there are no records of {name!r}: neither the file {file} nor any in the folder {folder}")
    records = Records()
    for path in files:
        records += Records.load(path)
    return compose(records, defenses=defenses_in(folder)).tables()
