"""The picture of a report: accuracy against the radius, under a single attack, averaged, and in the worst case."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path

from advbnn.evaluation.records import Record
from advbnn.report import plots
from advbnn.report.audited import at_most, clean_in
from advbnn.report.canvas import INK
from advbnn.report.elements import NOTHING, Cell, Figure, Table, percent, percent_range
from advbnn.report.select import images_of, samples_of
from advbnn.report.series import Series
from advbnn.report.style import Look

_FEWEST = 3  # points of a line; a line through two would suggest what lies between
_STYLES = ("solid", "dotted")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Panels side by side with one legend, and what they show in words."""

    name: str
    caption: str
    alt: str
    panels: Sequence[plots.Panel]
    legend: Sequence[plots.Line]
    numbers: Table

    def figure(self) -> Figure:
        wide = len(self.panels) > 1
        draw = partial(plots.panels_svg, self.name, self.panels, self.legend)
        return Figure(name=self.name, caption=self.caption, alt=self.alt, draw=draw, numbers=self.numbers, wide=wide)

    def save(self, path: Path) -> None:
        """As a file, SVG, PDF or PNG by its ending."""
        plots.lines_file(path, self.panels, self.legend)


def pictures(series: Sequence[Series], clean: Mapping[str, Record], looks: Mapping[str, Look]) -> list[Picture]:
    """One picture for each norm; with one model a single panel, with several a panel for each attack."""
    norms = dict.fromkeys(place[0] for one in reversed(series) for place in one.balls)
    made = []
    for norm in norms:
        of_norm = [one for one in series if any(place[0] == norm for place in one.balls)]
        shown = [look for label, look in looks.items() if any(one.of(label, norm) for one in of_norm)]
        made.append(_picture(norm, of_norm, clean, shown))
    return made


def _picture(norm: str, series: Sequence[Series], clean: Mapping[str, Record], shown: Sequence[Look]) -> Picture:
    axis = f"{norm} radius of the attack"
    points = {
        (one.title, look.label): _with_clean(one, look.label, norm, clean.get(look.label))
        for one in series
        for look in shown
    }
    still = [look for look in shown if any(one.worst and _deterministic(one, look.label) for one in series)]
    if len(series) > 2:  # there is nothing to average, so that both attacks are the same
        points |= {(series[1].title, look.label): points[series[0].title, look.label] for look in still}
    if len(shown) == 1:
        ink = {"light": INK[1], "marker": "o"}  # so that the worst case stands out
        looks = [replace(shown[0], title=one.title, **(ink if one.worst else {})) for one in series]
        lines = [
            accuracy_line(look, points[one.title, look.label], style="dashed" if one.worst else style)
            for one, look, style in zip(series, looks, cycle(_STYLES))
            if points[one.title, look.label]
        ]
        panels = [plots.Panel(lines=lines, x_label=axis)]
        legend = [plots.Line(look=line.look, style=line.style) for line in lines]
    else:
        panels = [
            plots.Panel(
                title=f"{one.title[0].upper()}{one.title[1:]}",
                x_label=axis,
                lines=[accuracy_line(look, found) for look in shown if (found := points[one.title, look.label])],
            )
            for one in series
        ]
        legend = [plots.Line(look=look) for look in shown]
    used = [r for one in series for look in shown for r in one.of(look.label, norm)]
    note = f" {', '.join(look.title for look in still)}: not random, so that averaging changes nothing."
    note = note if still and len(series) > 2 and len(shown) > 1 else ""
    return Picture(
        name=f"accuracy-{norm}",
        caption=f"Accuracy against the {axis}, with 95 % intervals. {images_of(used)}; {samples_of(used)}.{note}",
        alt=f"Accuracy against the {axis}. {' '.join(_ends(series, shown, points))}",
        panels=panels,
        legend=legend,
        numbers=_numbers(norm, axis, series, shown, points),
    )


def _with_clean(series: Series, label: str, norm: str, clean: Record | None) -> list[Record]:
    """The records of a model by radius, from the accuracy without attack on, on the same images if it is known."""
    found = series.of(label, norm)
    if not found or found[0].radius == 0:
        return found
    start = (clean_in(found[0]) if series.worst else None) or clean
    return found if start is None else [start, *found]


def _deterministic(worst: Series, label: str) -> bool:
    found = worst.of(label)
    return bool(found) and not found[0].details.get("random", True)


def accuracy_line(look: Look, points: Sequence[Record], at: str = "radius", style: str = "solid") -> plots.Line:
    """Accuracies in % with their intervals, against an attribute of the records; points alone if there are few."""
    ends = [_ends_of(r) for r in points]
    return plots.Line(
        look=look,
        x=[getattr(r, at) or 0.0 for r in points],
        y=[100 * r.accuracy for r in points],
        low=[100 * low for low, _ in ends],
        high=[100 * high for _, high in ends],
        style=style if len(points) >= _FEWEST else "points",
    )


def _ends_of(record: Record) -> tuple[float, float]:
    most = at_most(record) if record.kind == "worst_case" else None
    return record.interval[0], (most or record).interval[1]


def _ends(
    series: Sequence[Series], shown: Sequence[Look], points: Mapping[tuple[str, str], Sequence[Record]]
) -> Iterable[str]:
    for one in series:
        for look in shown:
            if found := points[one.title, look.label]:
                last = found[-1]
                yield f"{look.title}, {one.title}: {percent(last.accuracy)} % at {last.radius:.4g}."


def _numbers(
    norm: str,
    axis: str,
    series: Sequence[Series],
    shown: Sequence[Look],
    points: Mapping[tuple[str, str], Sequence[Record]],
) -> Table:
    rows = []
    for one in series:
        at = {look.label: {r.radius: r for r in points[one.title, look.label]} for look in shown}
        for place in sorted({eps for found in at.values() for eps in found}):
            cells = [_cell(at[look.label].get(place)) for look in shown]
            rows.append([Cell(one.title), Cell(f"{place:.4g}"), *cells])
    columns = ["attack", "radius", *(look.title for look in shown)]
    caption = f"Accuracy in % against the {axis}, with 95 % intervals."
    return Table(name=f"accuracy-{norm}", caption=caption, columns=columns, rows=rows)


def _cell(record: Record | None) -> Cell:
    return NOTHING if record is None else Cell(percent(record.accuracy), percent_range(*_ends_of(record)))
