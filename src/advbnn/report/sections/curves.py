"""Accuracy while one setting varies: one plot for each attack, with all models."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from advbnn.evaluation.records import Record, Records
from advbnn.report import plots
from advbnn.report.elements import NOTHING, Cell, Figure, Section, Table, percent, percent_range
from advbnn.report.picture import accuracy_line
from advbnn.report.select import condition, images_of, labels_of, samples_of
from advbnn.report.style import Look

_SECTIONS = {
    "radius": ("Accuracy against radius", ("radius",)),
    "strength": ("Strength of the attack", ("steps", "eot")),
    "ensemble": ("Number of weight samples", ("ensemble",)),
    "alpha": ("Weight of the KL", ("alpha",)),
}
_AXES = {
    "radius": "radius of the attack",
    "ensemble": "weight samples",
    "steps": "attack steps",
    "eot": "EOT samples per step",
    "alpha": "alpha, the weight of the KL",
}
_LOGARITHMIC = ("steps", "eot", "alpha")
_WORDS = {
    "radius": "Accuracy against the size of the perturbation; 0 is without attack. Bands are 95 % intervals.",
    "ensemble": "A random network predicts with the mean over several weight samples. The curves show how many are "
    "needed. A deterministic network is a horizontal line.",
    "steps": "More steps should make an attack stronger. A curve that still decreases at its right end means that the "
    "attack was stopped too early; one that increases means that the attack fails.",
    "eot": "The gradient of a single weight sample is noisy. Averaged over more samples (EOT) it follows the loss of "
    "the whole ensemble. The decrease of the curve is the robustness that was only due to noise.",
    "alpha": "Each point is a network trained with another weight alpha of the KL to the prior. A smaller alpha lets "
    "the network fit its training images more closely, and may cost robustness.",
}


def curve_section(
    name: str, records: Records, looks: Mapping[str, Look], shown: Collection[str] = ()
) -> Section | None:
    """A section of curves, by its name in `_SECTIONS`; attacks with a name in `shown` are shown elsewhere."""
    title, curves = _SECTIONS[name]
    figures: list[Figure] = []
    words: list[str] = []
    for curve in curves:
        panels: dict[str, list[Record]] = {}
        for record in records.where(curve=curve):
            if record.correct and record.name not in shown:
                panels.setdefault(_panel_title(record), []).append(record)
        names = _anchors(curve, panels)
        figures += [_figure(names[at], curve, at, panel, looks) for at, panel in panels.items()]
        words += [_WORDS[curve]] if panels else []
    return Section(name=name, title=title, words=words, figures=figures) if figures else None


def _panel_title(record: Record) -> str:
    if record.curve != "radius":
        return condition(record)
    return record.name if record.threat is None else f"{record.name}, {record.threat.norm}"


def _figure(name: str, curve: str, title: str, panel: Sequence[Record], looks: Mapping[str, Look]) -> Figure:
    found = labels_of(panel)
    shown = [look for label, look in looks.items() if label in found]
    ordered = sorted(panel, key=_place)
    solid = [accuracy_line(look, [r for r in ordered if r.model.label == look.label], "at") for look in shown]
    axis = _AXES[curve]
    plotted = plots.Panel(lines=solid, x_label=axis, log=curve in _LOGARITHMIC)
    measured = images_of(panel) if curve == "ensemble" else f"{images_of(panel)}; {samples_of(panel)}"
    ends = " ".join(
        f"{line.look.title}: {line.y[0]:.1f} % at {line.x[0]:.4g}, {line.y[-1]:.1f} % at {line.x[-1]:.4g}."
        for line in solid
    )
    return Figure(
        name=name,
        caption=f"{title[0].upper()}{title[1:]}. {measured}.",
        alt=f"Accuracy against the {axis}, {title}. {ends}",
        draw=partial(plots.lines_svg, name, plotted, y_label="accuracy, %", top=100),
        numbers=_numbers(name, f"Accuracy in % with its 95 % interval, {title}.", axis, panel, shown),
    )


def _place(record: Record) -> float:
    return record.at or 0.0


def _numbers(name: str, caption: str, axis: str, panel: Sequence[Record], shown: Sequence[Look]) -> Table:
    cells = {(_place(r), r.model.label): Cell(percent(r.accuracy), percent_range(*r.interval)) for r in panel}
    positions = sorted({position for position, _ in cells})
    rows = [[Cell(f"{at:.4g}"), *(cells.get((at, look.label), NOTHING) for look in shown)] for at in positions]
    return Table(name=name, caption=caption, columns=[axis, *(look.title for look in shown)], rows=rows)


def _anchors(curve: str, titles: Iterable[str]) -> dict[str, str]:
    """A name of letters, digits and dashes for each title, used as an anchor in the page."""
    names: dict[str, str] = {}
    for title in titles:
        name = "-".join(re.findall(r"[a-z0-9.]+", f"{curve} {title}".lower()))
        alike = sum(other.startswith(name) for other in names.values())
        names[title] = f"{name}-{alike + 1}" if name in names.values() else name
    return names
