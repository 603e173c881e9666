"""The leaderboard as a static page that needs no other file, with Markdown, CSV and the entries beside it."""

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from advbnn.leaderboard.entry import Accuracy, Entry, to_json
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
from advbnn.machine.files import write_atomically
from advbnn.report.dumbbells import LOOKS, Dumbbell, dumbbells_png, dumbbells_svg
from advbnn.report.elements import percent, percent_range
from advbnn.report.render import filled

TITLE = "Randomized defences, audited"


def write_board(entries: Sequence[Entry], out: Path | str) -> Path:
    """Writes `index.html`, `leaderboard.md`, `leaderboard.csv`, the figures and `entries/`; returns the page's path."""
    folder = Path(out)
    texts = {"index.html": html(entries), "leaderboard.md": markdown(entries), "leaderboard.csv": to_csv(entries)}
    texts |= {f"entries/{entry.id}.json": to_json(entry) for entry in entries}
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    for name, group in _figures(entries).items():
        dumbbells_png(folder / f"{name}.png", dumbbells(group))
    return folder / "index.html"


def markdown(entries: Sequence[Entry]) -> str:
    return f"# {TITLE}\n\n{table(entries).markdown()}"


def html(entries: Sequence[Entry]) -> str:
    own, report = files("advbnn.leaderboard"), files("advbnn.report")
    script = own.joinpath("page.js").read_text("utf-8")
    by_id = {entry.id: entry for entry in entries}
    figures = _figures(entries)
    return filled(
        own.joinpath("page.html.j2").read_text("utf-8"),
        title=TITLE,
        entries=ranked(entries),
        by_id=by_id,
        columns=COLUMNS,
        number_columns=NUMBERS,
        caption=CAPTION,
        figures={name: (group, *_drawings(name, group)) for name, group in figures.items()},
        worst=WORST,
        difference=DIFFERENCE,
        verdict_look=lambda entry: {BETTER: "up", WORSE: "down"}.get(verdict(entry), ""),
        verdicts=(BETTER, SAME, WORSE),
        judged=lambda group, word: [entry for entry in group if verdict(entry) == word],
        alt=_alt,
        numbers=lambda entry: numbers(entry, by_id),
        threat=threat_words,
        accuracy=_accuracy,
        percent=percent,
        settings=_settings,
        looks=LOOKS,
        style=report.joinpath("style.css").read_text("utf-8") + own.joinpath("page.css").read_text("utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _figures(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The entries of one figure each: of the same data and threat, if there are at least two lines to draw."""
    found = {}
    for _, group in groupby(ranked(entries), key=lambda entry: (entry.dataset, threat_words(entry))):
        together = list(group)
        name = re.sub(r"[^\w-]", "_", f"{together[0].dataset}-{threat_words(together[0])}".replace(" ", "-"))
        if len(dumbbells(together)) > 1:
            found[name] = together
    return found


def _drawings(name: str, entries: Sequence[Entry]) -> tuple[str, str]:
    """The figure for wide and for narrow screens."""
    rows = dumbbells(entries)
    return dumbbells_svg(name, rows), dumbbells_svg(f"{name}-narrow", rows, narrow=True)


def _alt(entries: Sequence[Entry]) -> str:
    def words(row: Dumbbell) -> str:
        claim = "no claim" if row.claimed is None else f"claimed {row.claimed:.1f} %"
        protocol = "" if row.protocol is None else f", {row.protocol:.1f} % by its own protocol"
        worst = "not audited yet" if row.audited is None else f"worst case {row.audited:.1f} %"
        difference = row.difference and f", difference to the baseline {row.difference}"
        return f"{row.name}: {claim}{protocol}, {worst}{difference}"

    return "; ".join(map(words, dumbbells(entries)))


def _accuracy(found: Accuracy) -> str:
    return f"{percent(found.accuracy)} % {percent_range(*found.interval)}, {found.n:,} images"


def _settings(settings: object) -> str:
    if not isinstance(settings, dict):
        return str(settings)
    nested = {name: f"({_settings(one)})" if isinstance(one, dict) else str(one) for name, one in settings.items()}
    return ", ".join(f"{name}={text}" for name, text in nested.items())
