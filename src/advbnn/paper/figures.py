"""The data of the paper's figures: ours in full colour, the paper's numbers outlined and dashed where it has any.

Each function takes the evidence and returns what draws the figure, or None if nothing was measured. `report.plots`
draws; a new figure is one more function here, added to `FIGURES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from advbnn.defenses.profiles import DEFENSES
from advbnn.paper import published as paper
from advbnn.paper.evidence import Evidence
from advbnn.paper.number import Number
from advbnn.paper.protocol import AUTHORS, RANDOM
from advbnn.report.canvas import INK
from advbnn.report.plots import Line, Panel, bars_png, heat_map_png, lines_file
from advbnn.report.sections.smoothness import lipschitz_bar
from advbnn.report.style import looks

_LOOKS = looks(DEFENSES)
_KEY = replace(_LOOKS["none"], light=INK[1])  # of legend entries that belong to no defence
_SHADES = ("#22262b", "#7a5195", "#bf5504")
_RADIUS = "radius of the attack"

Draw = Callable[[Path], None]


def draw_all(evidence: Evidence, out: Path) -> dict[str, Path]:
    """Writes every figure that there are records for, and returns the paths by name."""
    out.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, (_, choose) in FIGURES.items():
        if (draw := choose(evidence)) is not None:
            written[name] = out / f"{name}.png"
            draw(written[name])
    return written


def _table1(evidence: Evidence) -> Draw | None:
    """Adversarial training and Adv-BNN: the paper's numbers, its attack, and stronger attacks."""
    shown = [name for name in ("adv", "adv_bnn") if name in evidence.measured]
    if not shown:
        return None
    radii = (0.0, *evidence.radii)
    panels = []
    for name in shown:
        lines = [*_paper_line(evidence, name), *_line(name, {eps: evidence.authors(name, eps) for eps in radii})]
        if name in RANDOM:
            averaged = {eps: evidence.averaged(name, eps) for eps in radii}
            lines += _line(name, averaged, style="dotted", band=False)
        worst = {eps: evidence.worst(name, eps) for eps in evidence.radii}
        stars = _line(name, worst, style="stars", band=False, light=INK[1])
        most = [one.mean for eps in worst if (one := evidence.worst_at_most(name, eps)) is not None]
        lines += [replace(line, low=line.y, high=most) for line in stars]
        panels.append(Panel(title=_LOOKS[name].title, x_label=_RADIUS, lines=lines))
    drawn = {line.style for panel in panels for line in panel.lines}
    ranges = any(evidence.worst(name, eps) != evidence.worst_at_most(name, eps) for name in shown for eps in radii)
    titles = {
        "outlined": "the paper, its attack",
        "solid": "its attack, here" if "outlined" in drawn else "the paper's attack",
        "dotted": "averaged gradients",
        "stars": "worst case, with its range" if ranges else "worst case",
    }
    legend = [_key(title, style) for style, title in titles.items() if style in drawn or style == "solid"]
    return partial(lines_file, panels=panels, legend=legend)


def _fig2(evidence: Evidence) -> Draw | None:
    """Accuracy against the radius; beside it the same under averaged gradients."""
    radii = sorted({0.0, *evidence.radii, *evidence.experiment.protocol.radii})
    shown = [name for name in DEFENSES if any(evidence.authors(name, eps) for eps in radii)]
    if not shown:
        return None
    left = [line for name in shown for line in _paper_line(evidence, name)]
    left += [line for name in shown for line in _line(name, {eps: evidence.authors(name, eps) for eps in radii})]
    places = (0.0, *evidence.radii)
    right = [line for name in shown for line in _line(name, {eps: evidence.averaged(name, eps) for eps in places})]
    panels = [
        Panel(title=f"{AUTHORS}, the paper's attack", x_label=_RADIUS, lines=left),
        Panel(title="Averaged gradients", x_label=_RADIUS, lines=right),
    ]
    legend = [Line(look=_LOOKS[name]) for name in shown]
    legend += [_key("the paper (Table 1)", "outlined")] if evidence.paper else []
    return partial(lines_file, panels=panels, legend=legend)


def _fig3(evidence: Evidence) -> Draw | None:
    rho, experiment = evidence.affinity, evidence.experiment
    names = [name for name in DEFENSES if name in rho]
    if len(names) < 2:
        return None
    title = f"Affinity at radius {experiment.protocol.transfer_radius:g} (1: as harmful as the direct attack)"
    if experiment.data == "cifar10":
        low, high = paper.AFFINITY_OF_ROBUST
        title += f"\nThe paper: none and BNN {paper.AFFINITY_OF_PLAIN}; the other three {low} to {high}"
    titles, values = [_LOOKS[name].title for name in names], [[rho[a].get(b) for b in names] for a in names]
    return partial(heat_map_png, names=titles, values=values, title=title, x_label="tried on", y_label="crafted on")


def _fig4(evidence: Evidence) -> Draw | None:
    """Accuracy of Adv-BNN by the number of weight samples, and by the steps of the attack."""
    radii = (0.0, *evidence.experiment.protocol.study_radii)
    titles = {eps: f"radius {eps:g}" if eps else "no attack" for eps in radii}
    panels = []
    for over, axis in (("ensemble", "weight samples"), ("steps", "attack steps")):
        lines: list[Line] = []
        for shade, eps in zip(_SHADES, radii, strict=True):
            numbers = evidence.curve(over, eps)
            lines += _line("adv_bnn", numbers, title=titles[eps], light=shade)
            reported = evidence.paper_says("adv_bnn", eps)
            if numbers and reported is not None:
                lines.append(_level(reported, shade, "dashed level"))
        panels.append(Panel(title=f"Adv-BNN: {axis}", x_label=axis, lines=lines, log=over == "steps"))
    if not any(panel.lines for panel in panels):
        return None
    drawn = {line.look.title: line.look for panel in panels for line in panel.lines if line.style == "solid"}
    legend = [Line(look=drawn[title]) for title in titles.values() if title in drawn]
    if evidence.paper:
        legend.append(_key("the paper (Table 1: 20 steps, 10 to 20 samples)", "dashed level"))
    return partial(lines_file, panels=panels, legend=legend)


def _lipschitz(evidence: Evidence) -> Draw | None:
    """The local Lipschitz value on training and on test images."""
    bars = [
        lipschitz_bar(_LOOKS[name], part, details)
        for name in ("adv", "adv_bnn")
        for part in ("train", "test")
        if (details := evidence.lipschitz(name, part)) is not None
    ]
    x_label = "increase of the loss within the training radius, nats"
    x_label += "\nbars: first-order estimate, with two standard errors"
    title, mark = "Local Lipschitz value", "increase under the attack"
    return partial(bars_png, bars=bars, title=title, x_label=x_label, mark=mark) if bars else None


def _alpha(evidence: Evidence) -> Draw | None:
    """What a smaller alpha does without and under attack."""
    protocol = evidence.experiment.protocol
    radius = protocol.study_radii[1]
    names = {"clean": "no attack", AUTHORS: f"the paper's attack, {radius:g}"}
    names[protocol.averaged] = f"averaged gradients, {radius:g}"
    lines: list[Line] = []
    for shade, (name, title) in zip(_SHADES, names.items(), strict=True):
        lines += _line("adv_bnn", dict(sorted(evidence.alpha(name).items())), title=title, light=shade)
    if not lines:
        return None
    ticks = sorted({x for line in lines for x in line.x})
    ours, reported = evidence.clean("adv"), evidence.paper_says("adv", 0.0)
    colour = _LOOKS["adv"].light
    if ours is not None:
        lines.append(_level(ours.mean, colour, "level", "adv. training, no attack"))
    if reported is not None:
        lines.append(_level(reported, colour, "dashed level", "the same in the paper"))
    title, x_label = "Adv-BNN with smaller alpha", "alpha, the weight of the KL"
    panel = Panel(title=title, x_label=x_label, lines=lines, log=True, ticks=ticks)
    legend = [Line(look=line.look, style=line.style) for line in lines]
    return partial(lines_file, panels=[panel], legend=legend, below=False)


FIGURES: Mapping[str, tuple[str, Callable[[Evidence], Draw | None]]] = {
    "table1": ("Adversarial training and Adv-BNN: the paper's attack, averaged gradients, and the worst case", _table1),
    "fig2": ("Figure 2: accuracy against the radius of the attack", _fig2),
    "fig3": ("Figure 3: how well attacks transfer from one network to another", _fig3),
    "fig4": ("Figure 4: number of weight samples, and number of attack steps", _fig4),
    "lipschitz": ("Section 3: the local Lipschitz value on training and test images", _lipschitz),
    "alpha": ("Table 1, caption: the effect of a smaller alpha", _alpha),
}
"""By the name of the file: the caption, and what chooses the data."""


def _line(
    defense: str, numbers: Mapping[float, Number | None], *, style: str = "solid", band: bool = True, **look: str
) -> list[Line]:
    found = {at: number for at, number in numbers.items() if number is not None}
    if not found:
        return []
    ends = {end: [getattr(number, end) for number in found.values()] for end in ("low", "high") if band}
    means = [number.mean for number in found.values()]
    return [Line(look=replace(_LOOKS[defense], **look), x=list(found), y=means, style=style, **ends)]


def _paper_line(evidence: Evidence, defense: str) -> list[Line]:
    if defense not in evidence.paper:
        return []
    return [Line(look=_LOOKS[defense], x=(0.0, *evidence.radii), y=evidence.paper[defense], style="outlined")]


def _level(value: float, colour: str, style: str, title: str = "") -> Line:
    return Line(look=replace(_KEY, light=colour, title=title), y=[value], style=style)


def _key(title: str, style: str) -> Line:
    return Line(look=replace(_KEY, title=title), style=style)
