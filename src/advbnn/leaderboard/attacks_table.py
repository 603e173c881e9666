"""What single attacks and the audit leave of each entry, as one table for documents."""

from collections.abc import Sequence

from advbnn.leaderboard.entry import Entry, WorstCase
from advbnn.leaderboard.tables import BETTER, WORSE, difference_of, ranked, verdict
from advbnn.report.elements import NOTHING, Cell, Table, percent

_AUTOATTACK = "AutoAttack rand, "
COLUMNS = (
    "accuracy in %",
    "clean",
    "its own protocol",
    "PGD-20 by EOT samples",
    "AutoAttack rand",
    "worst case",
    "difference",
)


def attacks_table(entries: Sequence[Entry]) -> Table:
    """One row per audited entry, the most robust first."""
    audited = [(entry, worst) for entry in ranked(entries) if (worst := entry.worst_case) is not None]
    levels = sorted({f"{worst.level}, {worst.n:,} images" for _, worst in audited})
    caption = (
        "PGD-20: in brackets the number of averaged gradients. AutoAttack rand: as its package counts, and in brackets "
        "its points on a fresh pass. It counts an image as broken once a single pass of the attack is wrong, so its "
        "count may be below the accuracy of one pass, and it returns the clean image where it finds no such pass. "
        f"Worst case: audits ({'; '.join(levels)}). Difference: from the worst case of the baseline, a network "
        "without randomness, with its 95 % paired interval; in bold where that excludes zero."
    )
    return Table(name="attacks", caption=caption, columns=COLUMNS, rows=[_row(*pair) for pair in audited])


def _row(entry: Entry, worst: WorstCase) -> list[Cell]:
    counts = {attack.name.removeprefix(_AUTOATTACK): attack.accuracy for attack in entry.attacks}
    counted, fresh = counts.get("as it counts"), counts.get("its points on a fresh pass")
    found = [None if one is None else one.accuracy for one in (entry.clean, entry.own_protocol)]
    curve = ", ".join(f"{percent(point.accuracy)} ({point.eot})" for point in entry.plateau)
    difference = difference_of(entry)
    return [
        Cell(entry.name),
        *(NOTHING if share is None else Cell(percent(share)) for share in found),
        Cell(curve, "" if entry.flat else "not flat") if curve else NOTHING,
        NOTHING if counted is None else Cell(percent(counted), "" if fresh is None else f"({percent(fresh)})"),
        Cell(percent(worst.accuracy)),
        Cell(difference.text, difference.note, strong=verdict(entry) in (BETTER, WORSE)),
    ]
