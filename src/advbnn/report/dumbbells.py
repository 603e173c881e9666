"""One line per defence from the accuracy that its source claims, or measures by its protocol, to the audited one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advbnn.report.canvas import INK, file_canvas, svg_canvas, to_svg
from advbnn.report.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLAIMED = Look("claimed", "claimed", "--claimed", "#1442a0", "#5a9bff", "o")
AUDITED = Look("audited", "worst case", "--audited", "#bf5504", "#ee8a45", "s")
PROTOCOL = Look("protocol", "its own protocol, here", "--claimed", "#1442a0", "#5a9bff", "D")
LOOKS = (CLAIMED, AUDITED)

_ROW, _WIDTH, _NAMES, _DIFFERENCES, _TOP, _BOTTOM = 30, 860, 280, 150, 40, 50  # in points
_NARROW_ROW, _NARROW, _NARROW_TOP = 50, 360, 56


@dataclass(frozen=True, kw_only=True)
class Dumbbell:
    """The accuracies of one defence in percent, where known: claimed; by the source's protocol on our network; audited,
    with its interval; of its baseline. The `difference` to that is a text, bold where it is `clear`."""

    name: str
    claimed: float | None = None
    protocol: float | None = None
    audited: float | None = None
    interval: tuple[float, float] | None = None
    baseline: float | None = None
    difference: str = ""
    clear: bool = False


def dumbbells_svg(name: str, rows: Sequence[Dumbbell], narrow: bool = False) -> str:
    """The lines from the top down, with a legend above; `name` is unique in a page.

    A `narrow` drawing is for telephones: the names are above the lines.
    """
    width, row, top = (_NARROW, _NARROW_ROW, _NARROW_TOP) if narrow else (_WIDTH, _ROW, _TOP)
    left, right = (12, 12) if narrow else (_NAMES, _DIFFERENCES + 12)
    height = row * len(rows) + top + _BOTTOM
    place = (left / width, _BOTTOM / height, 1 - (left + right) / width, 1 - (top + _BOTTOM) / height)
    with svg_canvas(width, height, place) as (figure, axes):
        _draw(axes, rows, narrow)
        return to_svg(figure, name, LOOKS)


def dumbbells_png(path: Path, rows: Sequence[Dumbbell]) -> None:
    height = _ROW * len(rows) + _TOP + _BOTTOM
    with file_canvas(path, columns=1, width=_WIDTH / 72, height=height / 72) as (figure, (axes,)):
        # the layout takes bold text for narrower than it is
        figure.set_layout_engine("constrained", rect=(0, 0, 0.99, 1))
        _draw(axes, rows)


def _draw(axes: "Axes", rows: Sequence[Dumbbell], narrow: bool = False) -> None:
    for place, row in enumerate(rows):
        known = [value for value in (row.claimed, row.protocol, row.audited) if value is not None]
        if row.audited is not None and len(known) > 1:
            axes.plot([min(known), max(known)], [place, place], color=INK[1], linewidth=1, alpha=0.5, zorder=1)
        if row.interval is not None:
            axes.plot(row.interval, [place, place], color=AUDITED.light, linewidth=4, alpha=0.35, zorder=2)
        if row.audited is None and row.claimed is not None:
            side, gap = ("left", 9) if row.claimed < 70 else ("right", -9)
            words: dict[str, Any] = {"ha": side, "va": "center", "fontsize": 10, "fontstyle": "italic"}
            words |= {"xytext": (gap, 0), "textcoords": "offset points"}
            axes.annotate("not audited yet", (row.claimed, place), **words)
    styles: list[tuple[str, list[float | None], dict[str, Any]]] = [
        ("claimed", [row.claimed for row in rows], _mark(CLAIMED, markerfacecolor="none")),
        ("its own protocol, here", [row.protocol for row in rows], _mark(PROTOCOL, markerfacecolor="none")),
        ("worst case, audited", [row.audited for row in rows], _mark(AUDITED)),
        ("baseline, audited", [row.baseline for row in rows], {"marker": "|", "color": INK[1]}),
    ]
    for label, values, style in styles:
        points = [(value, place) for place, value in enumerate(values) if value is not None]
        if points:
            x, y = zip(*points, strict=True)
            style |= {"linestyle": "", "markersize": 8, "markeredgewidth": 1.8, "clip_on": False}
            axes.plot(x, y, zorder=3, label=label, **style)
    _label(axes, rows, narrow)
    axes.set(ylim=(len(rows) - 0.5, -0.8 if narrow else -0.5), xlim=(0, 100), xlabel="accuracy under attack, %")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    corner, columns = ((-0.02, 1), 2) if narrow else ((-0.5, 1), 4)
    legend: dict[str, Any] = {"frameon": False, "fontsize": 11, "borderaxespad": 0.2}
    axes.legend(loc="lower left", bbox_to_anchor=corner, ncols=columns, **legend)


def _label(axes: "Axes", rows: Sequence[Dumbbell], narrow: bool) -> None:
    """Names and differences: at the two sides of a line, or above it."""
    axes.set_yticks(range(len(rows)), [] if narrow else [row.name for row in rows])
    axes.tick_params(axis="y", pad=9)  # a mark at 0 reaches over the axis
    above = 0.42 if narrow else 0.0
    for place, row in enumerate(rows):
        words: dict[str, Any] = {"va": "center", "fontsize": 11}
        if narrow:
            axes.text(0, place - above, row.name, **words)
        side: dict[str, Any] = {"ha": "right"} if narrow else {"ha": "left"}
        weight = "bold" if row.clear else "normal"
        axes.text(100 if narrow else 103, place - above, row.difference, weight=weight, **words, **side)
    if any(row.difference for row in rows) and not narrow:
        axes.text(103, -0.7, "difference", va="bottom", fontsize=11)


def _mark(look: Look, **more: Any) -> dict[str, Any]:
    return {"marker": look.marker, "color": look.light, **more}
