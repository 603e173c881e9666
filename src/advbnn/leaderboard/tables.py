"""The leaderboard as a table: for the page, as Markdown and as CSV."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advbnn.leaderboard.entry import ALL, Accuracy, Entry
from advbnn.leaderboard.words import network_words
from advbnn.machine.files import csv_text
from advbnn.report.dumbbells import Dumbbell
from advbnn.report.elements import Cell, Table, percent, percent_range
from advbnn.report.select import radius_words

WORST, DIFFERENCE = "worst case", "difference"
COLUMNS = (
    "defence",
    WORST,
    DIFFERENCE,
    "baseline",
    "claimed",
    "its own protocol, here",
    "flags",
    "clean",
    "data",
    "kind",
    "status",
)
NUMBERS = range(1, 8)
"""The columns of `numbers`."""

CAPTION = (
    "Accuracy in % with its 95 % interval. Worst case: all attacks of an audit. Difference: to the worst case "
    "of the baseline, a network without randomness, with a paired interval. Claimed: what the source states "
    "at this threat, or those who are named. Its own protocol: the source's evaluation, run on our network. A dash: "
    "not measured, or no confirmed claim."
)


@dataclass(frozen=True, kw_only=True)
class Number:
    """One cell: `text` with a `note`, what it is sorted by, and the anchor of its evidence; empty without a number."""

    text: str
    note: str = ""
    sort: float | None = None
    anchor: str = ""


NOTHING = Number(text="-")


def ranked(entries: Sequence[Entry]) -> list[Entry]:
    """By data and threat; audited entries first, the most robust at the top, then by their claims."""

    def key(entry: Entry) -> tuple[object, ...]:
        worst, claim, threat = entry.worst_case, entry.claimed, entry.threat
        best = worst.accuracy if worst else claim.accuracy if claim else -1.0
        return entry.dataset, threat.norm, threat.eps, worst is None, -best

    return sorted(entries, key=key)


def numbers(entry: Entry, by_id: Mapping[str, Entry]) -> list[Number]:
    """The cells of an entry in the columns `NUMBERS`."""
    base = by_id[entry.baseline].worst_case if entry.baseline in by_id else None
    return [
        _number(entry.worst_case, f"{entry.id}-worst"),
        difference_of(entry),
        _number(base, f"{entry.baseline}-worst"),
        _claimed(entry),
        _number(entry.own_protocol, f"{entry.id}-protocol"),
        _flags(entry),
        _number(entry.clean, f"{entry.id}-clean"),
    ]


BETTER, SAME, WORSE = "better than its baseline", "no difference shown", "worse than its baseline"


def verdict(entry: Entry) -> str:
    """What the paired interval of the difference says; empty without a difference."""
    if entry.difference is None:
        return ""
    low, high = entry.difference.interval
    return BETTER if low > 0 else WORSE if high < 0 else SAME


def threat_words(entry: Entry) -> str:
    """Such as "linf 8/255"."""
    return f"{entry.threat.norm} {radius_words(entry.threat.eps)}"


def table(entries: Sequence[Entry]) -> Table:
    by_id = {entry.id: entry for entry in entries}
    rows = [
        [
            Cell(entry.name, f"({entry.venue})" if entry.venue else ""),
            *(Cell(cell.text, cell.note) for cell in numbers(entry, by_id)),
            *map(Cell, (f"{entry.dataset}, {threat_words(entry)}", entry.kind, entry.status)),
        ]
        for entry in ranked(entries)
    ]
    return Table(name="leaderboard", caption=CAPTION, columns=COLUMNS, rows=rows)


def to_csv(entries: Sequence[Entry]) -> str:
    """One row per entry, with shares as numbers; attacks on all images, whose shares compare, as JSON."""
    return csv_text([_flat(entry) for entry in ranked(entries)])


def dumbbells(entries: Sequence[Entry], by_id: Mapping[str, Entry]) -> list[Dumbbell]:
    """The lines of the figure: entries with a claim at their threat, or a worst case."""
    found = []
    for entry in ranked(entries):
        claim, worst = entry.claimed, entry.worst_case
        base = by_id[entry.baseline].worst_case if entry.baseline in by_id else None
        if claim is None and worst is None:
            continue
        difference = difference_of(entry)
        found.append(
            Dumbbell(
                name=entry.name,
                claimed=None if claim is None else 100 * claim.accuracy,
                protocol=None if entry.own_protocol is None else 100 * entry.own_protocol.accuracy,
                audited=None if worst is None else 100 * worst.accuracy,
                interval=None if worst is None else (100 * worst.interval[0], 100 * worst.interval[1]),
                baseline=None if base is None else 100 * base.accuracy,
                difference="" if entry.difference is None else f"{difference.text} {difference.note}",
                clear=verdict(entry) in (BETTER, WORSE),
            )
        )
    return found


def _number(found: Accuracy | None, anchor: str) -> Number:
    if found is None:
        return NOTHING
    return Number(text=percent(found.accuracy), note=percent_range(*found.interval), sort=found.accuracy, anchor=anchor)


def _claimed(entry: Entry) -> Number:
    claim = entry.claimed
    if claim is None:  # such as an attack that minimises the distance
        return Number(text="-", note="other threat", anchor=f"{entry.id}-claimed") if entry.claims else NOTHING
    note = f"{claim.attack}, by {claim.by}" if claim.by else claim.attack
    return Number(text=percent(claim.accuracy), note=note, sort=claim.accuracy, anchor=f"{entry.id}-claimed")


def difference_of(entry: Entry) -> Number:
    """The difference to the baseline with its interval, in points; nothing without one."""
    found = entry.difference
    if found is None:
        return NOTHING
    low, high = (f"{100 * end:+.1f}" for end in found.interval)
    shown = f"{100 * found.difference:+.1f}"
    return Number(text=shown, note=f"[{low}, {high}]", sort=found.difference, anchor=f"{entry.id}-difference")


def _flags(entry: Entry) -> Number:
    if entry.worst_case is None:
        return NOTHING
    return Number(text=str(len(entry.flags)), sort=len(entry.flags), anchor=f"{entry.id}-flags")


def _flat(entry: Entry) -> dict[str, object]:
    def of(name: str, found: Accuracy | None) -> dict[str, object]:
        low, high = found.interval if found else ("", "")
        return {name: found.accuracy if found else "", f"{name}_low": low, f"{name}_high": high}

    claim, difference = entry.claimed, entry.difference
    on_all = {attack.name: attack.accuracy for attack in entry.attacks if attack.on == ALL}
    return {
        **{name: getattr(entry, name) for name in ("id", "name", "paper", "venue", "code", "kind")},
        "architecture": network_words(entry.architecture),
        "dataset": entry.dataset,
        "norm": entry.threat.norm,
        "eps": entry.threat.eps,
        "status": entry.status,
        "samples": entry.samples or "",
        **of("clean", entry.clean),
        "claimed": claim.accuracy if claim else "",
        "claimed_attack": claim.attack if claim else "",
        "claimed_by": claim.by if claim else "",
        **of("own_protocol", entry.own_protocol),
        **of("worst_case", entry.worst_case),
        "level": entry.worst_case.level if entry.worst_case else "",
        "baseline": entry.baseline,
        "difference": difference.difference if difference else "",
        "difference_low": difference.interval[0] if difference else "",
        "difference_high": difference.interval[1] if difference else "",
        "flags": " ".join(flag.name for flag in entry.flags),
        "attacks": json.dumps(on_all),
        "weights_sha256": entry.weights_sha256,
        "commit": entry.commit,
        "command": entry.command,
    }
