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
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 11, "borderaxespad": 0.2}
_MARK, _LIFT, _NEAR = 8, 9, 3.0
"""Size of a mark, and how far it is lifted, in points; the accuracies in percent whose marks would cover each other."""


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


def lifts(row: Dumbbell) -> dict[str, int]:
    """Where the marks of a line are drawn, so that none covers another: 0 on the line, 1 above it, -1 below it."""
    found: dict[str, int] = {}
    values = {"audited": row.audited, "protocol": row.protocol, "claimed": row.claimed}
    for name, value in values.items():
        if value is not None:
            near = {lift for other, lift in found.items() if abs((values[other] or 0.0) - value) < _NEAR}
            found[name] = next(lift for lift in (0, 1, -1) if lift not in near)
    return found


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
        corner, columns = ((-0.02, 1), 2) if narrow else ((-0.5, 1), 4)
        axes.legend(loc="lower left", bbox_to_anchor=corner, ncols=columns, **_LEGEND)
        return to_svg(figure, name, LOOKS)


def dumbbells_png(path: Path, rows: Sequence[Dumbbell]) -> None:
    height = _ROW * len(rows) + _TOP + _BOTTOM
    with file_canvas(path, columns=1, width=_WIDTH / 72, height=height / 72) as (figure, (axes,)):
        # the layout takes bold text for narrower than it is
        figure.set_layout_engine("constrained", rect=(0, 0, 0.99, 1))
        _draw(axes, rows)
        # where short names leave little room beside the axes, the legend still begins at the edge
        figure.legend(loc="outside upper left", ncols=4, **_LEGEND)


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
    styles: dict[str, tuple[str, dict[str, Any]]] = {
        "claimed": ("claimed", _mark(CLAIMED, markerfacecolor="none")),
        "protocol": ("its own protocol, here", _mark(PROTOCOL, markerfacecolor="none")),
        "audited": ("worst case, audited", _mark(AUDITED)),
        # longer than the marks, which may lie on it
        "baseline": ("baseline, audited", {"marker": "|", "color": INK[1], "markersize": 2 * _MARK, "zorder": 2.5}),
    }
    lift = _LIFT / (_NARROW_ROW if narrow else _ROW)
    for name, (label, style) in styles.items():
        values = [(getattr(row, name), place - lift * lifts(row).get(name, 0)) for place, row in enumerate(rows)]
        points = [(value, place) for value, place in values if value is not None]
        if points:
            x, y = zip(*points, strict=True)
            every: dict[str, Any] = {
                "linestyle": "",
                "markersize": _MARK,
                "markeredgewidth": 1.8,
                "clip_on": False,
                "zorder": 3,
            }
            axes.plot(x, y, label=label, **every | style)
    _label(axes, rows, narrow)
    axes.set(ylim=(len(rows) - 0.5, -0.8 if narrow else -0.5), xlim=(0, 100), xlabel="accuracy under attack, %")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)


def _label(axes: "Axes", rows: Sequence[Dumbbell], narrow: bool) -> None:
    """Names and differences: at the two sides of a line, or above it."""
    axes.set_yticks(range(len(rows)), [] if narrow else [row.name for row in rows])
    axes.tick_params(axis="y", pad=12)  # a mark at 0 reaches over the axis
    above = 0.48 if narrow else 0.0  # over the lifted marks, too
    for place, row in enumerate(rows):
        words: dict[str, Any] = {"va": "center", "fontsize": 11}
        if narrow:
            axes.text(0, place - above, row.name, **words)
        side: dict[str, Any] = {"ha": "right"} if narrow else {"ha": "left"}
        weight = "bold" if row.clear else "normal"
        axes.text(100 if narrow else 103, place - above, row.difference, weight=weight, **words, **side)
    if any(row.difference for row in rows) and not narrow:
        axes.text(103, -0.7, "less baseline,\nin points", va="bottom", fontsize=11)


def _mark(look: Look, **more: Any) -> dict[str, Any]:
    return {"marker": look.marker, "color": look.light, **more}
