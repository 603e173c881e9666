"""Accuracy while one setting varies: one plot for each attack, with all models."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from advbnn.errors import ArgumentError
from advbnn.evaluation.records import Record, Records
from advbnn.report import plots
from advbnn.report.elements import NOTHING, Cell, Figure, Section, Table, percent, percent_range
from advbnn.report.select import ball, clean_of, condition, images_of, is_authors_attack, labels_of, radius, samples_of
from advbnn.report.style import Look

_AXES = {
    "radius": "radius of the attack",
    "ensemble": "weight samples",
    "steps": "steps of the attack",
    "eot": "EOT samples per step",
    "alpha": "alpha, the weight of the KL",
}
_LOGARITHMIC = ("steps", "eot", "alpha")

_RADIUS = "Accuracy against the size of the perturbation; 0 is without attack. Bands are 95 % intervals."
_WORST = (
    "Dashed lines show the worst case: an image counts as robust only if no attack of the audit's suite breaks it. The "
    "gap between the solid and the dashed line of a model is what the single attack missed."
)
_ENSEMBLE = (
    "A random network predicts with the mean over several weight samples. The curves show how many are needed. A "
    "deterministic network is a horizontal line."
)
_STEPS = (
    "More steps should make an attack stronger. A curve that still decreases at its right end means that the attack "
    "was stopped too early; one that increases means that the attack fails."
)
_EOT = (
    "The gradient of a single weight sample is noisy. Averaged over more samples (EOT) it follows the loss of the "
    "whole ensemble. The decrease of the curve is the robustness that was only due to noise."
)
_ALPHA = (
    "Each point is a network trained with another weight alpha of the KL to the prior. A smaller alpha lets the "
    "network fit its training images more closely, and may cost robustness."
)


def radius_section(records: Records, worst: Records, looks: Mapping[str, Look]) -> Section | None:
    """The curves over the radius, with the worst case as a second line of each model.

    Args:
        records: all records.
        worst: those of the worst case.
        looks: of the models.
    """
    panels: dict[str, list[Record]] = {}
    for record in _on_curve(records, "radius"):
        norm = "" if record.threat is None else f", {record.threat.norm}"
        panels.setdefault(f"{record.name}{norm}", []).append(record)
    if not panels:
        return None
    dashed = _worst_lines(records, worst, looks, panels)
    names = _names("radius", panels)
    figures = [
        _figure(names[title], "radius", title, panel, looks, dashed.get(title, ())) for title, panel in panels.items()
    ]
    words = [_RADIUS, _WORST] if any(dashed.values()) else [_RADIUS]
    return Section(name="radius", title="Accuracy against radius", words=words, figures=figures)


def ensemble_section(records: Records, looks: Mapping[str, Look]) -> Section | None:
    """The curves over the number of weight samples."""
    figures = _figures(records, "ensemble", looks)
    title = "Number of weight samples"
    return Section(name="ensemble", title=title, words=[_ENSEMBLE], figures=figures) if figures else None


def strength_section(records: Records, looks: Mapping[str, Look]) -> Section | None:
    """The curves over the steps and the EOT samples of the attack."""
    steps, eot = _figures(records, "steps", looks), _figures(records, "eot", looks)
    words = [*([_STEPS] if steps else []), *([_EOT] if eot else [])]
    title = "Strength of the attack"
    return Section(name="strength", title=title, words=words, figures=[*steps, *eot]) if words else None


def alpha_section(records: Records, looks: Mapping[str, Look]) -> Section | None:
    """The curves over the weight of the KL in training; every point is another network."""
    figures = _figures(records, "alpha", looks)
    title = "Weight of the KL"
    return Section(name="alpha", title=title, words=[_ALPHA], figures=figures) if figures else None


def _on_curve(records: Records, curve: str) -> list[Record]:
    return [record for record in records.where(curve=curve) if record.correct]


def _figures(records: Records, curve: str, looks: Mapping[str, Look]) -> list[Figure]:
    panels: dict[str, list[Record]] = {}
    for record in _on_curve(records, curve):
        panels.setdefault(condition(record), []).append(record)
    names = _names(curve, panels)
    return [_figure(names[title], curve, title, panel, looks) for title, panel in panels.items()]


def _figure(
    name: str,
    curve: str,
    title: str,
    panel: Sequence[Record],
    looks: Mapping[str, Look],
    dashed: Sequence[plots.Line] = (),
) -> Figure:
    found = labels_of(panel)
    shown = [look for label, look in looks.items() if label in found]
    solid = [_line(look, [r for r in panel if r.model.label == look.label]) for look in shown]
    drawn = [*solid, *(line for line in dashed if line.look in shown)]
    axis = _AXES[curve]
    plotted = plots.Panel(lines=drawn, x_label=axis, log=curve in _LOGARITHMIC)
    whose = " (the authors' attack)" if is_authors_attack(panel[-1]) else ""
    measured = images_of(panel) if curve == "ensemble" else f"{images_of(panel)}; {samples_of(panel)}"
    return Figure(
        name=name,
        caption=f"{title[0].upper()}{title[1:]}{whose}. {measured}.",
        alt=f"Accuracy against the {axis}, {title}. {_in_words(solid)}",
        draw=partial(plots.lines_svg, name, plotted, y_label="accuracy, %", top=100),
        numbers=_numbers(name, f"Accuracy in % with its 95 % interval, {title}.", axis, panel, shown),
    )


def _line(look: Look, points: Sequence[Record]) -> plots.Line:
    ordered = sorted(points, key=_place)
    return plots.Line(
        look=look,
        x=[_place(r) for r in ordered],
        y=[100 * r.accuracy for r in ordered],
        low=[100 * r.interval[0] for r in ordered],
        high=[100 * r.interval[1] for r in ordered],
    )


def _worst_lines(
    records: Records, worst: Records, looks: Mapping[str, Look], panels: Mapping[str, Sequence[Record]]
) -> dict[str, list[plots.Line]]:
    """The lines of the worst case by the title of their panel: one panel per norm, if possible the paper's attack."""
    beside: dict[str, str] = {}
    for title, panel in sorted(panels.items(), key=lambda item: not is_authors_attack(item[1][-1])):
        beside.setdefault(ball(panel[-1])[0], title)
    return {
        title: [line for look in looks.values() if (line := _worst_line(records, worst, norm, look)) is not None]
        for norm, title in beside.items()
    }


def _worst_line(records: Records, worst: Records, norm: str, look: Look) -> plots.Line | None:
    points = {radius(r): 100 * r.accuracy for r in worst.where(label=look.label) if ball(r)[0] == norm}
    if not points:
        return None
    clean = clean_of(records, look.label)
    if clean is not None:
        points[0.0] = 100 * clean.accuracy
    return plots.Line(look=look, x=sorted(points), y=[points[eps] for eps in sorted(points)], style="dashed")


def _numbers(name: str, caption: str, axis: str, panel: Sequence[Record], shown: Sequence[Look]) -> Table:
    cells = {(_place(r), r.model.label): Cell(percent(r.accuracy), percent_range(*r.interval)) for r in panel}
    places = sorted({place for place, _ in cells})
    return Table(
        name=name,
        caption=caption,
        columns=[axis, *(look.title for look in shown)],
        rows=[[Cell(f"{at:.4g}"), *(cells.get((at, look.label), NOTHING) for look in shown)] for at in places],
    )


def _in_words(drawn: Sequence[plots.Line]) -> str:
    return " ".join(
        f"{line.look.title}: {line.y[0]:.1f} % at {line.x[0]:.4g}, {line.y[-1]:.1f} % at {line.x[-1]:.4g}."
        for line in drawn
    )


def _place(record: Record) -> float:
    if record.at is None:
        raise ArgumentError(
            f"{record.name!r} of {record.model.label} is on a curve over {record.curve} but has no position `at`"
        )
    return record.at


def _names(curve: str, titles: Iterable[str]) -> dict[str, str]:
    """A name of letters, digits and dashes for each title, used as an anchor in the page."""
    names: dict[str, str] = {}
    for title in titles:
        name = "-".join(re.findall(r"[a-z0-9.]+", f"{curve} {title}".lower()))
        alike = sum(other.startswith(name) for other in names.values())
        names[title] = f"{name}-{alike + 1}" if name in names.values() else name
    return names
