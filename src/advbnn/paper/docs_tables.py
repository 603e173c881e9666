"""Tables in documents, generated from records, so that no number in them is typed by hand.

A document marks the place of a table by `<!-- table: RECORDS/NAME -->` and `<!-- end -->`. RECORDS is a file of records
(`digits` for `digits.json`), a folder of such files, or one or several reproductions (`cifar10+digits`). NAME is

- any table of their report, such as `headline`;
- for one reproduction also `table1` and `claims`;
- for one or several `verdicts`, and `summary:0.035,0.07`: every defence at these radii;
- for a folder `paired:one,modes5@8/255,0.035`: these files of it, each of one network, and their differences from the
  first, at these radii or, without `@`, at all; `one*` is the mean over `one` and its other seeds, `one-seed1`, ....

RECORDS may also name tables that the caller makes.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path

from advbnn.errors import AdvbnnError, ArgumentError, one_of
from advbnn.evaluation.records import Records
from advbnn.machine.files import read_text, write_atomically
from advbnn.paper.claims import check_claims
from advbnn.paper.evidence import Evidence
from advbnn.paper.experiment import FILE as REPRODUCTION
from advbnn.paper.tables import claims_table, summary_table, table1, verdicts_table
from advbnn.report.compose import compose
from advbnn.report.elements import Table
from advbnn.report.paired import paired_table, read_network
from advbnn.report.style import defenses_in

PAIRED = "paired"

Others = Mapping[str, Callable[[], Mapping[str, Table]]]
"""What makes further tables, by the name that documents have for their records."""

_START = re.compile(r"^<!-- table: (\S+) -->$", re.MULTILINE)
_BLOCK = re.compile(r"^<!-- table: (\S+) -->\n(?:(?!<!-- table: ).*\n)*?<!-- end -->$", re.MULTILINE)


def has_tables(text: str) -> bool:
    """Whether a document marks any place for a table."""
    return _START.search(text) is not None


def refreshed(text: str, results: Path, others: Others | None = None) -> str:
    """Returns a markdown document with every marked table made again, from the folder of records or by `others`."""
    tables = cache(lambda records, radii: _tables(results, records, radii))

    def block(found: re.Match[str]) -> str:
        records, _, name = found[1].partition("/")
        name, _, radii = name.partition(":")
        if others and records in others:
            known = others[records]()
        else:
            known = _paired(results / records, radii) if name == PAIRED else tables(records, radii)
        one_of(f"table of {records}", name, known)
        return f"<!-- table: {found[1]} -->\n\n{known[name].markdown()}\n<!-- end -->"

    ended = {found.start() for found in _BLOCK.finditer(text)}
    for start in _START.finditer(text):
        if start.start() not in ended:
            raise ArgumentError(f"the table {start[1]} has no <!-- end -->; write it on a line below the table")
    return _BLOCK.sub(block, text)


def refresh(
    documents: list[Path],
    results: Path,
    *,
    others: Others | None = None,
    check: bool = False,
) -> list[Path]:
    """Writes the marked tables of documents again, unless `check`; returns the documents that were out of date."""
    fresh = {}
    for document in documents:
        text = read_text(document)
        try:
            if (new := refreshed(text, results, others)) != text:
                fresh[document] = new
        except AdvbnnError as error:
            raise ArgumentError(f"{document}: {error}") from error
    for document, text in fresh.items():
        if not check:
            write_atomically(document, text.encode())
    return list(fresh)


def _tables(results: Path, name: str, radii: str) -> dict[str, Table]:
    folders = [results / one for one in name.split("+")]
    if len(folders) > 1 or (folders[0] / REPRODUCTION).is_file():
        evidence = {folder.name: Evidence.read(folder) for folder in folders}
        claims = {folder: check_claims(found) for folder, found in evidence.items()}
        made = {"verdicts": verdicts_table(claims), "summary": summary_table(evidence, _numbers(radii))}
        if len(folders) > 1:
            return made
        found = evidence[folders[0].name]
        made |= {"table1": table1(found), "claims": claims_table(claims[folders[0].name])}
        return compose(found.records, defenses=defenses_in(folders[0])).tables() | made
    file = results / f"{name}.json"
    files = [file] if file.is_file() else sorted(folders[0].glob("*.json"))
    if not files:
        raise ArgumentError(f"there are no records of {name!r}: neither {file} nor JSON files in {folders[0]}")
    records = sum(map(Records.load, files), Records())
    return compose(records, defenses=defenses_in(folders[0])).tables()


def _paired(folder: Path, chosen: str) -> dict[str, Table]:
    files, _, radii = chosen.partition("@")
    return {PAIRED: paired_table([read_network(folder, file) for file in files.split(",")], _numbers(radii))}


def _numbers(radii: str) -> list[float]:
    try:
        return [float(Fraction(eps)) for eps in radii.split(",")] if radii else []
    except (ValueError, ZeroDivisionError):
        raise ArgumentError(f"radii={radii!r} of a summary must be numbers, as in summary:0.035,0.07") from None
