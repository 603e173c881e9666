"""Plots as SVG that stands in a page: text stays text, and colours follow the reader's choice of light or dark."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advbnn.errors import MissingPackageError
from advbnn.report.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GROUND = ("--ink", "#22262b"), ("--faint", "#dddad2"), ("--ground", "#fdfcfa")
"""The CSS variables of text, grid lines and paper, and their colours where no page sets them."""

_WIDTH, _HEIGHT, _SQUARE = 400, 270, 190
_FONT, _LABEL_GAP, _MOST_MARKS = 12, 14, 12
_MARKS = tuple(float(f"{digit}e{power}") for power in range(-6, 4) for digit in (1, 3))
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "advbnn",  # the same records give the same file
    "text.parse_math": False,  # a label with a dollar in it is no formula
    "font.family": "sans-serif",
    "font.size": _FONT,
    "text.color": INK[1],
    "axes.labelcolor": INK[1],
    "axes.edgecolor": INK[1],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid.axis": "y",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT[1],
    "grid.linewidth": 0.8,
    "xtick.color": INK[1],
    "ytick.color": INK[1],
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """The points of one model.

    Attributes:
        look: of the model.
        x: where.
        y: what was measured there.
        low: lower ends of the intervals; None for no band.
        high: upper ends.
        dashed: a second line of the same model, drawn dashed with hollow marks and without a label.
    """

    look: Look
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Dots:
    """Points of a reliability diagram.

    Attributes:
        x: confidence.
        y: accuracy.
        share: of all predictions, for each point; the size of the dot.
        hollow: drawn as rings.
    """

    x: Sequence[float]
    y: Sequence[float]
    share: Sequence[float]
    hollow: bool = False


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of one model: its length, the half width of its whisker, and a second value marked on it."""

    look: Look
    label: str
    length: float
    error: float
    mark: float
    pale: bool = False


def lines(
    name: str, drawn: Sequence[Line], *, x_label: str, y_label: str, top: float | None = None, log: bool = False
) -> str:
    """Lines with their bands, each named at its end.

    Args:
        name: unique among the plots of a page.
        drawn: the lines.
        x_label: what varies.
        y_label: what was measured.
        top: the upper end of the vertical axis; fitted when None.
        log: whether the horizontal axis is logarithmic.
    """
    with _drawing(_WIDTH, _HEIGHT, (0.095, 0.17, 0.67, 0.73)) as (figure, axes):
        for line in drawn:
            colour, marker = line.look.light, line.look.marker
            if line.low is not None and line.high is not None:
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.14, linewidth=0)
            style: dict[str, Any] = {"linestyle": (0, (3, 2)), "markerfacecolor": "none"} if line.dashed else {}
            every = -(-len(line.x) // _MOST_MARKS)
            axes.plot(line.x, line.y, color=colour, marker=marker, markevery=every, clip_on=False, **style)
        axes.set_ylim(0, top)
        axes.set_xlabel(x_label)
        _name_vertical(axes, y_label)
        if log:
            _logarithmic(axes, sorted({x for line in drawn for x in line.x}))
        _name_ends(axes, _HEIGHT, [line for line in drawn if not line.dashed])
        return _svg(figure, name, [line.look for line in drawn])


def reliability(name: str, look: Look, drawn: Sequence[Dots]) -> str:
    """Accuracy against confidence; on the diagonal probabilities mean what they say."""
    with _drawing(_SQUARE, _SQUARE, (0.14, 0.21, 0.82, 0.66)) as (figure, axes):
        axes.plot([0, 100], [0, 100], color=INK[1], linewidth=0.8, linestyle=(0, (1, 2)))
        for dots in drawn:
            sizes = [6 + 160 * share for share in dots.share]
            inside = "none" if dots.hollow else look.light
            axes.scatter(dots.x, dots.y, s=sizes, facecolor=inside, edgecolor=look.light, alpha=0.75, linewidth=1.2)
        axes.set(xlim=(0, 104), ylim=(0, 104), xticks=(0, 50, 100), yticks=(0, 50, 100))
        axes.set_xlabel("confidence, %")
        _name_vertical(axes, "accuracy, %")
        return _svg(figure, name, [look])


def bars(name: str, drawn: Sequence[Bar], *, x_label: str) -> str:
    """Horizontal bars from the top down, neighbours of the same model close to each other."""
    places, place = [], 0.0
    for before, bar in zip([None, *drawn], drawn, strict=False):
        if before is not None:
            place += 1 if before.look == bar.look else 1.6
        places.append(place)
    height = 26 * place + 90
    with _drawing(_WIDTH, height, (0.3, 46 / height, 0.64, 1 - 56 / height)) as (figure, axes):
        for at, bar in zip(places, drawn, strict=True):
            axes.barh(at, bar.length, 0.78, color=bar.look.light, alpha=0.35 if bar.pale else 0.75, linewidth=0)
            axes.plot([bar.length - bar.error, bar.length + bar.error], [at, at], color=INK[1], linewidth=1.2)
            axes.plot(bar.mark, at, marker="D", markersize=6, markerfacecolor=GROUND[1], color=INK[1])
        axes.set_yticks(places, [bar.label for bar in drawn])
        axes.set(ylim=(place + 0.6, -0.6), xlim=(0, None))
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.set_xlabel(x_label)
        return _svg(figure, name, [bar.look for bar in drawn])


def spread_out(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the values, in their order, at least `gap` apart and within [low, high] as far as there is room."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    gap = min(gap, (high - low) / max(len(values) - 1, 1))
    places = [0.0] * len(values)
    least = low
    for rank, index in enumerate(order):
        most = high - gap * (len(order) - 1 - rank)
        places[index] = min(max(values[index], least), most)
        least = places[index] + gap
    return places


@contextmanager
def _drawing(width: float, height: float, place: tuple[float, float, float, float]) -> Iterator["tuple[Figure, Axes]"]:
    """A new figure, in points, and its axes, drawn in the style of the report."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError("a report needs matplotlib: pip install 'advbnn[report]'") from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width / 72, height / 72))
        yield figure, figure.add_axes(place)


def _name_vertical(axes: "Axes", label: str) -> None:
    # above the axis and level, where it is read without turning the head
    axes.text(0, 1.06, label, transform=axes.transAxes, ha="left", va="bottom")


def _logarithmic(axes: "Axes", values: Sequence[float]) -> None:
    axes.set_xscale("log")
    marks = [mark for mark in _MARKS if values[0] <= mark <= values[-1]]
    axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
    axes.set_xticks([], minor=True)


def _name_ends(axes: "Axes", height: float, drawn: Sequence[Line]) -> None:
    low, high = axes.get_ylim()
    gap = _LABEL_GAP * (high - low) / (height * axes.get_position().height)
    for line, place in zip(drawn, spread_out([line.y[-1] for line in drawn], gap, low, high), strict=True):
        axes.text(
            1.02, place, line.look.title, color=line.look.light, transform=axes.get_yaxis_transform(), va="center"
        )


def _svg(figure: "Figure", name: str, used: Sequence[Look]) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    width, height = (72 * inches for inches in figure.get_size_inches())
    drawing = text.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    # its style would hold for the whole page, which has the same rule for drawings alone
    drawing = re.sub(r"<(metadata|style)\b.*?</\1>", "", drawing, flags=re.DOTALL)
    # as wide as the page lets it be; what it shows is said by the page
    drawing = re.sub(
        r"<svg[^>]*>",
        f'<svg viewBox="0 0 {width:g} {height:g}" aria-hidden="true" focusable="false">',
        drawing,
        count=1,
    )
    drawing = drawing.replace("xlink:href", "href")
    # several drawings share a page: names of their own
    drawing = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", drawing)
    for variable, colour in [INK, FAINT, GROUND, *((look.variable, look.light) for look in used)]:
        drawing = re.sub(rf"{colour}(?!\))", f"var({variable}, {colour})", drawing)
    return drawing
