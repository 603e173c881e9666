"""The worst case of two kinds of networks against a growing number, such as that of the modes, as a picture."""

from collections.abc import Mapping
from pathlib import Path

from advbnn.errors import ArgumentError
from advbnn.evaluation.comparison import comparison
from advbnn.evaluation.records import Record, Records
from advbnn.report.audited import worst_cases
from advbnn.report.plots import Line, Panel, lines_file
from advbnn.report.select import ball, radius_words
from advbnn.report.style import Look, looks

_LOG = 100
"""The largest number that is shown on a linear axis."""


def growth_png(
    path: Path,
    alone: Mapping[float, Records],
    several: Mapping[float, Records],
    *,
    titles: tuple[str, str],
    against: str = "number of modes",
) -> None:
    """One panel per radius that all have; `alone` and `several` hold records of one network for each number.

    The band around the second line is the paired interval of its difference from the first, added to the first: where
    the first line is outside, the interval excludes zero.
    """
    first, second = (
        {n: {ball(r): r for r in worst_cases(records)} for n, records in of.items()} for of in (alone, several)
    )
    places = sorted(set.intersection(*(set(one) for of in (first, second) for one in of.values())))
    one, other = looks(titles).values()
    panels = []
    for place in places:
        below, above = ({n: found[place] for n, found in of.items()} for of in (first, second))
        lines = [Line(look=one, x=list(below), y=_percent(below)), _with_band(other, above, below)]
        title = f"worst case at {radius_words(place[1])}"
        panels.append(Panel(title=title, x_label=against, lines=lines, ticks=list(below), log=max(below) > _LOG))
    ends = [y for panel in panels for line in panel.lines for y in (*line.y, *(line.low or ()), *(line.high or ()))]
    span = max(0.0, min(ends) - 5), min(100.0, max(ends) + 5)
    lines_file(path, panels, [Line(look=one), Line(look=other)], span=span)


def _percent(of: Mapping[float, Record]) -> list[float]:
    return [100 * record.accuracy for record in of.values()]


def _with_band(look: Look, of: Mapping[float, Record], than: Mapping[float, Record]) -> Line:
    ends = [_interval(record, than[number]) for number, record in of.items()]
    low, high = ([100 * end[side] for end in ends] for side in (0, 1))
    return Line(look=look, x=list(of), y=_percent(of), low=low, high=high)


def _interval(record: Record, than: Record) -> tuple[float, float]:
    if record == than:  # the same network, where there is one mode
        return record.accuracy, record.accuracy
    if (pair := comparison(record, than)) is None:
        labels = f"{record.model.label} and {than.model.label}"
        raise ArgumentError(f"{labels} were judged on different images; judge both on the same")
    low, high = pair.interval
    return than.accuracy + low, than.accuracy + high
