"""The leaderboard as a static page that needs no other file, with Markdown, CSV and the entries beside it."""

import base64
import csv
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from advbnn.errors import FileError
from advbnn.leaderboard.entry import KINDS, Accuracy, Entry, to_json
from advbnn.leaderboard.tables import (
    BETTER,
    CAPTION,
    COLUMNS,
    DIFFERENCE,
    NUMBERS,
    SAME,
    WORSE,
    WORST,
    dumbbells,
    numbers,
    ranked,
    table,
    threat_words,
    to_csv,
    verdict,
)
from advbnn.leaderboard.words import network_words, randomness_words, settings_words
from advbnn.machine.files import read_text, write_atomically
from advbnn.report.dumbbells import LOOKS, Dumbbell, dumbbells_png, dumbbells_svg
from advbnn.report.elements import percent, percent_range
from advbnn.report.render import filled
from advbnn.report.select import extent, radius_words

TITLE = "Randomized defences, audited"
DOCS = {"method": "evaluation/index.html", "rules": "leaderboard/index.html"}
"""Pages in the site of the documentation."""


@dataclass(frozen=True, kw_only=True)
class _Figure:
    """Entries of the same data and threat, of one `kind` or of all, with their baselines in `by_id`."""

    name: str
    entries: Sequence[Entry]
    by_id: Mapping[str, Entry]
    kind: str = ""

    @property
    def rows(self) -> list[Dumbbell]:
        return dumbbells(self.entries, self.by_id)

    def svg(self, narrow: bool = False) -> str:
        return dumbbells_svg(f"{self.name}-narrow" if narrow else self.name, self.rows, narrow)

    def judged(self, word: str) -> list[Entry]:
        return [entry for entry in self.entries if verdict(entry) == word]


def write_board(entries: Sequence[Entry], out: Path | str, docs: str = "") -> Path:
    """Writes `index.html`, `leaderboard.md`, `leaderboard.csv`, the figures and `entries/`; returns the page's path.

    `docs` is the address of the documentation, which the page links to; relative to the page if it is in the same site.
    """
    folder = Path(out)
    if (folder / "index.html").exists() and not (folder / "leaderboard.csv").exists():
        raise FileError(f"{folder} holds another index.html; choose another folder (--out)")
    for old in _built_before(folder) - {entry.id for entry in entries}:
        (folder / "entries" / f"{old}.json").unlink(missing_ok=True)
    texts = {f"entries/{entry.id}.json": to_json(entry) for entry in entries}
    texts |= {
        "leaderboard.csv": to_csv(entries),
        "leaderboard.md": markdown(entries),
        "index.html": html(entries, docs),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    for figure in _figures(entries):
        if not figure.kind:
            dumbbells_png(folder / f"{figure.name}.png", figure.rows)
    return folder / "index.html"


def _built_before(folder: Path) -> set[str]:
    """The ids of the entries of an earlier page in this folder."""
    table = folder / "leaderboard.csv"
    return {row["id"] for row in csv.DictReader(io.StringIO(read_text(table)))} if table.exists() else set()


def markdown(entries: Sequence[Entry]) -> str:
    return f"# {TITLE}\n\n{table(entries).markdown()}"


def html(entries: Sequence[Entry], docs: str = "") -> str:
    own, report = files("advbnn.leaderboard"), files("advbnn.report")
    script = own.joinpath("page.js").read_text("utf-8")
    by_id = {entry.id: entry for entry in entries}
    return filled(
        own.joinpath("page.html.j2").read_text("utf-8"),
        title=TITLE,
        entries=ranked(entries),
        by_id=by_id,
        columns=COLUMNS,
        number_columns=NUMBERS,
        caption=CAPTION,
        scope=_scope(entries),
        docs={name: f"{docs.rstrip('/')}/{page}" for name, page in DOCS.items()} if docs else {},
        figures=_figures(entries),
        worst=WORST,
        difference=DIFFERENCE,
        verdict_look=lambda entry: {BETTER: "up", WORSE: "down"}.get(verdict(entry), ""),
        verdicts=(BETTER, SAME, WORSE),
        alt=_alt,
        numbers=lambda entry: numbers(entry, by_id),
        threat=threat_words,
        accuracy=_accuracy,
        percent=percent,
        network=network_words,
        radius=radius_words,
        randomness=randomness_words,
        settings=settings_words,
        looks=LOOKS,
        style=report.joinpath("style.css").read_text("utf-8") + own.joinpath("page.css").read_text("utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _figures(entries: Sequence[Entry]) -> list[_Figure]:
    """A figure for each data and threat with at least two lines to draw, and one for each kind among them."""
    found, by_id = [], {entry.id: entry for entry in entries}
    for _, group in groupby(ranked(entries), key=lambda entry: (entry.dataset, threat_words(entry))):
        together = list(group)
        name = re.sub(r"[^\w-]", "_", f"{together[0].dataset}-{threat_words(together[0])}".replace(" ", "-"))
        figure = _Figure(name=name, entries=together, by_id=by_id)
        if len(figure.rows) < 2:
            continue
        of_kinds = [
            replace(figure, name=f"{name}-{number}", kind=kind, entries=[one for one in together if one.kind == kind])
            for number, kind in enumerate(KINDS)
        ]
        found += [figure, *(one for one in of_kinds if one.rows)]
    return found


def _scope(entries: Sequence[Entry]) -> str:
    """How many entries are audited, at which level, on how many images, and after how long a training."""
    worst = [entry.worst_case for entry in entries if entry.worst_case is not None]
    if not worst:
        return f"{len(entries)} entries, none of them audited yet."
    levels = " or ".join(dict.fromkeys(one.level for one in worst))
    where = f"at level {levels} on {extent([one.n for one in worst])} test images"
    epochs = [entry.cost.epochs for entry in entries if entry.cost is not None and entry.worst_case is not None]
    audited = f"{len(worst)} of {len(entries)} entries are audited, {where}."
    if not epochs:
        return audited
    return (
        f"{audited} Training cost {extent(epochs)} epochs of one network. Sources often train longer, so compare a "
        "worst case with its baseline, which was trained here too, rather than with the claim."
    )


def _alt(figure: _Figure) -> str:
    def words(row: Dumbbell) -> str:
        claim = "no claim" if row.claimed is None else f"claimed {row.claimed:.1f} %"
        protocol = "" if row.protocol is None else f", {row.protocol:.1f} % by its own protocol"
        worst = "not audited yet" if row.audited is None else f"worst case {row.audited:.1f} %"
        difference = row.difference and f", difference to the baseline {row.difference}"
        return f"{row.name}: {claim}{protocol}, {worst}{difference}"

    return "; ".join(map(words, figure.rows))


def _accuracy(found: Accuracy) -> str:
    return f"{percent(found.accuracy)} % {percent_range(*found.interval)}, {found.n:,} images"
