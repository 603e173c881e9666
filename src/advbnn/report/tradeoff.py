"""The worst case against the accuracy without an attack, of kinds of networks with several radii of training."""

from collections.abc import Mapping
from pathlib import Path

from advbnn.evaluation.records import Records
from advbnn.report.audited import worst_cases
from advbnn.report.plots import Line, Panel, lines_file
from advbnn.report.select import ball, clean_of, labels_of, radius_words
from advbnn.report.style import looks


def tradeoff_png(path: Path, kinds: Mapping[str, Mapping[str, Records]]) -> None:
    """One panel per radius that all were attacked at; a network further up and to the right is better at both.

    Each of the `kinds`, by its title, maps the names of its points, such as the radius of training, to the records of a
    network.
    """
    every = [records for networks in kinds.values() for records in networks.values()]
    shared = set.intersection(*({ball(record) for record in worst_cases(records)} for records in every))
    of_kind = looks(kinds)
    panels = []
    for at in sorted(shared):
        lines = []
        for title, networks in kinds.items():
            clean = [_clean(records) for records in networks.values()]
            worst = [_worst(records, at) for records in networks.values()]
            lines.append(Line(look=of_kind[title], x=clean, y=worst, names=list(networks)))
        title = f"worst case at {radius_words(at[1])}"
        panels.append(Panel(title=title, x_label="accuracy without an attack, %", lines=lines))
    heights = [y for panel in panels for line in panel.lines for y in line.y]
    span = max(0.0, min(heights) - 3), min(100.0, max(heights) + 3)
    lines_file(path, panels, [Line(look=look) for look in of_kind.values()], span=span)


def _clean(records: Records) -> float:
    (label,) = labels_of(records)
    found = clean_of(records, label)
    return float("nan") if found is None else 100 * found.accuracy


def _worst(records: Records, at: tuple[str, float]) -> float:
    return next(100 * record.accuracy for record in worst_cases(records) if ball(record) == at)
