"""All plots, from plain data: as SVG for the page of a report, and as files."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advbnn.report.canvas import FAINT, GROUND, INK, file_canvas, svg_canvas, svg_panels, to_svg
from advbnn.report.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_WIDTH, _HEIGHT, _SQUARE = 400, 270, 190
_LABEL_GAP, _MOST_MARKS = 14, 20
_TICKS = tuple(float(f"{digit}e{power}") for power in range(-6, 4) for digit in (1, 3))

_STYLES: dict[str, dict[str, Any]] = {
    "solid": {},
    "dashed": {"linestyle": (0, (3, 2)), "markerfacecolor": "none"},
    # larger than the marks of other lines and on top of them, so that both are visible where they agree
    "outlined": {"linestyle": (0, (4, 2)), "linewidth": 1.2, "markerfacecolor": "none", "markersize": 10, "zorder": 4},
    "dotted": {"linestyle": ":", "marker": "x"},
    "points": {"linestyle": ""},
    "stars": {"linestyle": "", "marker": "*", "markersize": 11},
    "level": {"linewidth": 1.4, "marker": ""},
    "dashed level": {"linestyle": (0, (4, 2)), "linewidth": 1.2, "marker": ""},
    "place": {"linestyle": ":", "linewidth": 1.4},
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a plot in one of `_STYLES`, with a band between `low` and `high`, or a bar for each of its points.

    A level has one value `y`, and a place one value `x`, with the title above it. `names` are those of the
    points.
    """

    look: Look
    x: Sequence[float] = ()
    y: Sequence[float] = ()
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: str = "solid"
    names: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines over one horizontal axis; without `ticks`, those of a logarithmic one are 1, 3, 10, 30, ..."""

    lines: Sequence[Line]
    x_label: str
    title: str = ""
    log: bool = False
    ticks: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True)
class Dots:
    """Points of a reliability diagram: confidence, accuracy, and the share of predictions as the size of the dot."""

    x: Sequence[float]
    y: Sequence[float]
    share: Sequence[float]
    hollow: bool = False


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar: its length, half the width of its error bar, and a second value marked by a diamond."""

    look: Look
    label: str
    length: float
    error: float
    mark: float
    pale: bool = False


def lines_svg(name: str, panel: Panel, *, y_label: str, top: float | None = None) -> str:
    """Lines, each named at its right end; `name` is unique in a page, and the vertical axis ends at `top`."""
    with svg_canvas(_WIDTH, _HEIGHT, (0.095, 0.17, 0.67, 0.73)) as (figure, axes):
        _draw(axes, panel)
        axes.set_ylim(0, top)
        _label_above(axes, y_label)
        _name_ends(axes, _HEIGHT, [line for line in panel.lines if line.style in ("solid", "points")])
        return to_svg(figure, name, [line.look for line in panel.lines])


def lines_file(
    path: Path,
    panels: Sequence[Panel],
    legend: Sequence[Line],
    *,
    below: bool = True,
    span: tuple[float, float] = (0, 100),
) -> None:
    """Accuracies in %, in panels side by side, with a legend of lines without points, below or to the right."""
    size = {"width": 4.6, "height": 4.4} if len(panels) > 1 or below else {"width": 6.4, "height": 4.2}
    with file_canvas(path, columns=len(panels), sharey=True, **size) as (figure, all_axes):
        _draw_all(all_axes, panels, span)
        handles, labels = [_plot(all_axes[0], line) for line in legend], [line.look.title for line in legend]
        if below:
            figure.legend(handles, labels, loc="outside lower center", ncols=_columns(panels, labels), frameon=False)
        else:
            all_axes[0].legend(handles, labels, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def with_differences_file(path: Path, accuracies: Panel, differences: Panel) -> None:
    """Accuracies in % and, beside them, differences in points, of the same models, with a legend below."""
    with file_canvas(path, columns=2, width=5.0, height=4.6) as (figure, (left, right)):
        for axes, panel, unit in ((left, accuracies, "accuracy, %"), (right, differences, "points")):
            _draw(axes, panel)
            axes.set_title(panel.title, pad=18)
            axes.set_ylabel(unit)
        left.set_ylim(0, None)
        right.axhline(0, color=INK[1], linewidth=1)
        named = [line for line in accuracies.lines if line.style != "place"]
        handles = [_plot(left, Line(look=line.look, style=line.style)) for line in named]
        labels = [line.look.title for line in named]
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)


def panels_svg(name: str, panels: Sequence[Panel], legend: Sequence[Line]) -> str:
    """The same for a page: accuracies in %, in panels side by side, with the legend below."""
    with svg_panels(len(panels), 480 if len(panels) == 1 else 840 / len(panels), 330) as (figure, all_axes):
        _draw_all(all_axes, panels)
        handles, labels = [_plot(all_axes[0], line) for line in legend], [line.look.title for line in legend]
        figure.legend(handles, labels, loc="outside lower center", ncols=_columns(panels, labels), frameon=False)
        return to_svg(figure, name, [line.look for panel in panels for line in panel.lines])


def bars_svg(name: str, bars: Sequence[Bar], *, x_label: str) -> str:
    """Horizontal bars from the top down, those of the same model closer together."""
    gaps = [1.0 if one.look == other.look else 1.6 for one, other in pairwise(bars)]
    places = list(accumulate(gaps, initial=0.0))
    height = 26 * places[-1] + 90
    with svg_canvas(_WIDTH, height, (0.3, 46 / height, 0.64, 1 - 56 / height)) as (figure, axes):
        _draw_bars(axes, bars, places, x_label)
        return to_svg(figure, name, [bar.look for bar in bars])


def bars_png(path: Path, bars: Sequence[Bar], *, title: str, x_label: str, mark: str) -> None:
    """The same as a file, with `mark` as the name of the diamonds."""
    with file_canvas(path, columns=1, width=7.0, height=4.0) as (figure, (axes,)):
        diamond = _draw_bars(axes, bars, [float(place) for place in range(len(bars))], x_label)
        axes.set_title(title)
        figure.legend([diamond], [mark], loc="outside lower center", frameon=False)


def reliability_svg(name: str, look: Look, groups: Sequence[Dots]) -> str:
    """Accuracy against confidence; on the diagonal the model is calibrated."""
    with svg_canvas(_SQUARE, _SQUARE, (0.14, 0.21, 0.82, 0.66)) as (figure, axes):
        axes.plot([0, 100], [0, 100], color=INK[1], linewidth=0.8, linestyle=(0, (1, 2)))
        for dots in groups:
            sizes = [6 + 160 * share for share in dots.share]
            inside = "none" if dots.hollow else look.light
            axes.scatter(dots.x, dots.y, s=sizes, facecolor=inside, edgecolor=look.light, alpha=0.75, linewidth=1.2)
        axes.set(xlim=(0, 104), ylim=(0, 104), xticks=(0, 50, 100), yticks=(0, 50, 100))
        axes.set_xlabel("confidence, %")
        _label_above(axes, "accuracy, %")
        return to_svg(figure, name, [look])


def heat_map_png(
    path: Path,
    names: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    title: str,
    x_label: str,
    y_label: str,
) -> None:
    """A square matrix of values, 0 light and 1 dark, with each value written in its cell."""
    with file_canvas(path, columns=1, width=6.8, height=5.4) as (_, (axes,)):
        shades = [[float("nan") if value is None else min(max(value, 0.0), 1.2) for value in row] for row in values]
        axes.imshow(shades, cmap="Blues", vmin=0, vmax=1.3, aspect="auto")
        for row, of_row in enumerate(values):
            for column, value in enumerate(of_row):
                text = "-" if value is None else f"{value:.2f}"
                colour = GROUND[1] if value is not None and value > 0.75 else INK[1]
                axes.text(column, row, text, ha="center", va="center", fontsize=13, color=colour)
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.set_title(title, fontsize=12)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)


def spread_out(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the values, in their order, at least `gap` apart and within [low, high] if there is room."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    gap = min(gap, (high - low) / max(len(values) - 1, 1))
    places = [0.0] * len(values)
    least = low
    for rank, index in enumerate(order):
        most = high - gap * (len(order) - 1 - rank)
        places[index] = min(max(values[index], least), most)
        least = places[index] + gap
    return places


def _columns(panels: Sequence[Panel], labels: Sequence[str]) -> int:
    """As many columns of a legend as fit below the panels."""
    return min(len(labels), 5) if len(panels) > 1 or sum(map(len, labels)) < 30 else 1


def _draw_all(all_axes: Sequence["Axes"], panels: Sequence[Panel], span: tuple[float, float] = (0, 100)) -> None:
    """Accuracies in %, in panels with one vertical axis."""
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw(axes, panel)
        axes.set(title=panel.title, ylabel="accuracy, %", ylim=span)
        axes.label_outer()
        axes.grid(color=FAINT[1])


def _draw(axes: "Axes", panel: Panel) -> None:
    for number, line in enumerate(panel.lines):
        if "level" in line.style:
            axes.axhline(line.y[0], color=line.look.light, **_STYLES[line.style])
            continue
        if line.style == "place":
            axes.axvline(line.x[0], color=line.look.light, zorder=0, **_STYLES[line.style])
            words: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
            axes.text(line.x[0], 1, line.look.title, color=line.look.light, fontsize=10, **words)
            continue
        if line.low is not None and line.high is not None and line.style in ("points", "stars"):
            axes.vlines(line.x, line.low, line.high, color=line.look.light, linewidth=1.4)
        elif line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=line.look.light, alpha=0.12, linewidth=0)
        _plot(axes, line, below=sum(_agree(line, other) for other in panel.lines[:number]))
        beside: dict[str, Any] = {"xytext": (5, 4 if number % 2 else -13), "textcoords": "offset points"}
        for name, x, y in zip(line.names, line.x, line.y, strict=False):
            axes.annotate(name, (x, y), **beside, color=line.look.light, fontsize=10)
    axes.set_xlabel(panel.x_label)
    positions = sorted({x for line in panel.lines for x in line.x})
    if panel.log and positions:
        axes.set_xscale("log")
        ticks = panel.ticks or [tick for tick in _TICKS if positions[0] <= tick <= positions[-1]]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
    elif panel.ticks:
        axes.set_xticks(panel.ticks)
    elif len(positions) == 1:  # around a single place the ticks would have so many digits that they overlap
        axes.update_datalim([(0, 0)], updatey=False)
        axes.autoscale_view(scaley=False)


def _agree(line: Line, other: Line) -> bool:
    """Whether one line hides the other: within one point of it at three quarters of the places that both have."""
    of_other = dict(zip(other.x, other.y, strict=False))
    near = [abs(y - of_other[x]) < 1 for x, y in zip(line.x, line.y, strict=False) if x in of_other]
    return line.style != "outlined" != other.style and len(near) > 1 and 4 * sum(near) >= 3 * len(near)


def _plot(axes: "Axes", line: Line, below: int = 0) -> "Line2D":
    """Draws a line; on top of others that it would hide, dashed and with marks around theirs."""
    style: dict[str, Any] = {"color": line.look.light, "marker": line.look.marker, "zorder": 3} | _STYLES[line.style]
    if below:
        style |= {"markersize": style.get("markersize", 5) + 4 * below, "markerfacecolor": "none", "zorder": 3 + below}
        style.setdefault("linestyle", (0, (3, 3 * below)))
    if line.names:
        style["markersize"] = 8
    every = -(-len(line.x) // 12) if len(line.x) > _MOST_MARKS else 1
    # marks at the edge are drawn whole; an entry of the legend has no points, and unclipped it would widen the margins
    return axes.plot(line.x, line.y, markevery=every, clip_on=not line.x, **style)[0]


def _draw_bars(axes: "Axes", bars: Sequence[Bar], places: Sequence[float], x_label: str) -> "Line2D":
    for at, bar in zip(places, bars, strict=True):
        axes.barh(at, bar.length, 0.75, color=bar.look.light, alpha=0.4 if bar.pale else 0.8, linewidth=0)
        axes.plot([bar.length - bar.error, bar.length + bar.error], [at, at], color=INK[1], linewidth=1.4)
    style: dict[str, Any] = {"marker": "D", "markersize": 6.5, "markerfacecolor": GROUND[1], "color": INK[1]}
    (diamond,) = axes.plot([bar.mark for bar in bars], places, linestyle="", zorder=3, **style)
    axes.set_yticks(places, [bar.label for bar in bars])
    axes.set(ylim=(places[-1] + 0.6, -0.6), xlim=(0, None), xlabel=x_label)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    return diamond


def _label_above(axes: "Axes", label: str) -> None:
    # horizontal, so that it can be read without turning the head
    axes.text(0, 1.06, label, transform=axes.transAxes, ha="left", va="bottom")


def _name_ends(axes: "Axes", height: float, lines: Sequence[Line]) -> None:
    low, high = axes.get_ylim()
    gap = _LABEL_GAP * (high - low) / (height * axes.get_position().height)
    style: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
    for line, place in zip(lines, spread_out([line.y[-1] for line in lines], gap, low, high), strict=True):
        axes.text(1.02, place, line.look.title, color=line.look.light, **style)
