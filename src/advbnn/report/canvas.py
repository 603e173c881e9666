"""Where plots are drawn: SVG inside a page, with colours that follow light and dark mode, or files."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advbnn.errors import explain_missing_package
from advbnn.machine.files import written_whole
from advbnn.report.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GROUND = ("--ink", "#22262b"), ("--faint", "#dddad2"), ("--ground", "#fdfcfa")
"""CSS variables for text, grid lines and background, with their colours outside of a page."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "advbnn",  # the same records give the same file
    "text.parse_math": False,  # a dollar in a label does not start a formula
    "font.family": "sans-serif",
    "font.size": 12,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK[1]),
    "axes.linewidth": 0.8,
    **{f"axes.spines.{side}": False for side in ("top", "right", "left")},
    "axes.grid.axis": "y",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT[1],
    "grid.linewidth": 0.8,
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
}


@contextmanager
def svg_canvas(
    width: float, height: float, place: tuple[float, float, float, float]
) -> Iterator["tuple[Figure, Axes]"]:
    """A figure of a size in points, and its axes; see `to_svg`."""
    with _matplotlib({}) as new_figure:
        figure = new_figure(figsize=(width / 72, height / 72))
        yield figure, figure.add_axes(place)


@contextmanager
def svg_panels(columns: int, width: float, height: float) -> Iterator["tuple[Figure, Sequence[Axes]]"]:
    """A figure with panels side by side, each of a size in points, with one vertical axis; see `to_svg`."""
    with _matplotlib({"axes.titlesize": 12, "axes.titlepad": 8}) as new_figure:
        figure = new_figure(figsize=(width * columns / 72, height / 72), layout="constrained")
        yield figure, list(figure.subplots(1, columns, sharex=True, sharey=True, squeeze=False)[0])


@contextmanager
def file_canvas(
    path: Path, *, columns: int, width: float, height: float, sharey: bool = False
) -> Iterator["tuple[Figure, Sequence[Axes]]"]:
    """A figure with panels side by side, each `width` inches wide; saved to `path` at the end.

    The ending of the path chooses the format: .png, .svg or .pdf.
    """
    with _matplotlib({"axes.titlesize": 13, "axes.titlepad": 10, "legend.fontsize": 10.5}) as new_figure:
        figure = new_figure(figsize=(width * columns, height), layout="constrained", facecolor=GROUND[1])
        panels = list(figure.subplots(1, columns, sharey=sharey, squeeze=False)[0])
        for axes in panels:
            axes.set_facecolor(GROUND[1])
        yield figure, panels
        # without dates and versions, so that the same records give the same file
        without: dict[str, Any] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
        with written_whole(path) as file:
            figure.savefig(
                file, format=path.suffix[1:] or "png", dpi=150, metadata=without.get(path.suffix, {"Software": None})
            )


def to_svg(figure: "Figure", name: str, used: Sequence[Look]) -> str:
    """The figure as SVG for a page: text stays text, colours are CSS variables, ids start with `name`."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    width, height = (72 * inches for inches in figure.get_size_inches())
    drawing = text.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    # its style would apply to the whole page, which has the same rule for plots
    drawing = re.sub(r"<(metadata|style)\b.*?</\1>", "", drawing, flags=re.DOTALL)
    # as wide as the page allows; the page describes it for screen readers
    opening = f'<svg viewBox="0 0 {width:g} {height:g}" aria-hidden="true" focusable="false">'
    drawing = re.sub(r"<svg[^>]*>", opening, drawing, count=1).replace("xlink:href", "href")
    drawing = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", drawing)
    for variable, colour in [INK, FAINT, GROUND, *((look.variable, look.light) for look in used)]:
        drawing = re.sub(rf"{colour}(?!\))", f"var({variable}, {colour})", drawing)
    return drawing


@contextmanager
def _matplotlib(style: dict[Any, Any]) -> Iterator[Any]:
    """The class of figures, within the style of the report."""
    with explain_missing_package("plots need matplotlib: pip install 'advbnn[report]'"):
        import matplotlib
        from matplotlib.figure import Figure
    with matplotlib.rc_context(_STYLE | style):
        yield Figure
