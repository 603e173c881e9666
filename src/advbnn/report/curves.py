"""Accuracy while one thing varies: one plot for each attack, with all models on it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from advbnn.errors import ArgumentError
from advbnn.evaluation.records import Record, Records
from advbnn.report import plots
from advbnn.report.section import Figure, Section
from advbnn.report.select import ball, clean_of, condition, draws_of, images_of, is_authors_attack, labels_of, radius
from advbnn.report.style import Look
from advbnn.report.tables import NOTHING, Cell, Table, percent, percent_range

_AXES = {
    "radius": "radius of the attack",
    "ensemble": "draws that are averaged",
    "steps": "steps of the attack",
    "eot": "draws that the attack averages at each step",
    "alpha": "alpha, the weight of the divergence",
}
_LOGARITHMIC = ("steps", "eot", "alpha")

_RADIUS = (
    "Accuracy while the attacker is allowed to change the images more and more. At 0 nothing is changed. The band "
    "around each line is its 95 % interval."
)
_WORST = (
    "The dashed lines are the worst case: an image counts as right only if no attack of the audit's suite changes "
    "the answer. The distance between the solid and the dashed line of a model is what the one attack overlooked."
)
_ENSEMBLE = (
    "A random network answers with the mean of several draws of its weights. The curves show from how many draws on "
    "more of them change nothing. A network without randomness is a level line."
)
_STEPS = (
    "An attack that is given more steps can only get better. A curve that still falls at its right end says that the "
    "attack was stopped too early; one that rises says that the attack does not work."
)
_EOT = (
    "The gradient of one draw of the weights is a noisy guide. Averaged over more draws it points to where the whole "
    "ensemble is weak. How far the curve falls is how much the noise had hidden."
)
_ALPHA = (
    "Each point is a network that was trained with another weight alpha of the divergence from the prior. A smaller "
    "one leaves the network freer to fit its images, and may cost robustness."
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
    return Section(name="radius", title="Accuracy against the radius of the attack", words=words, figures=figures)


def ensemble_section(records: Records, looks: Mapping[str, Look]) -> Section | None:
    """The curves over the size of the ensemble."""
    figures = _figures(records, "ensemble", looks)
    title = "How many draws the classifier needs"
    return Section(name="ensemble", title=title, words=[_ENSEMBLE], figures=figures) if figures else None


def strength_section(records: Records, looks: Mapping[str, Look]) -> Section | None:
    """The curves over the steps and the draws of the attack."""
    steps, eot = _figures(records, "steps", looks), _figures(records, "eot", looks)
    words = [*([_STEPS] if steps else []), *([_EOT] if eot else [])]
    title = "A stronger attack"
    return Section(name="strength", title=title, words=words, figures=[*steps, *eot]) if words else None


def alpha_section(records: Records, looks: Mapping[str, Look]) -> Section | None:
    """The curves over the weight of the divergence in training; every point is a network of its own."""
    figures = _figures(records, "alpha", looks)
    title = "How strongly training holds the weights to their prior"
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
    whose = " (the authors' attack)" if is_authors_attack(panel[-1]) else ""
    measured = images_of(panel) if curve == "ensemble" else f"{images_of(panel)}; {draws_of(panel)}"
    return Figure(
        name=name,
        caption=f"{title[0].upper()}{title[1:]}{whose}. {measured}.",
        alt=f"Accuracy against the {axis}, {title}. {_in_words(solid)}",
        draw=partial(plots.lines, name, drawn, x_label=axis, y_label="accuracy, %", top=100, log=curve in _LOGARITHMIC),
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
    """The lines of the worst case by the title of their panel: one for each norm, with the paper's attack if it can."""
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
    return plots.Line(look=look, x=sorted(points), y=[points[eps] for eps in sorted(points)], dashed=True)


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
        raise ArgumentError(f"{record.name!r} of {record.model.label} is on a curve over {record.curve}, but not where")
    return record.at


def _names(curve: str, titles: Iterable[str]) -> dict[str, str]:
    """For each title a name of letters, digits and dashes, for an address in a page."""
    names: dict[str, str] = {}
    for title in titles:
        name = "-".join(re.findall(r"[a-z0-9.]+", f"{curve} {title}".lower()))
        alike = sum(other.startswith(name) for other in names.values())
        names[title] = f"{name}-{alike + 1}" if name in names.values() else name
    return names
