"""The local Lipschitz value of the models on training and test images (eqs. 14 to 16)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from advbnn.evaluation.records import Record, Records
from advbnn.report import plots
from advbnn.report.elements import Cell, Figure, Section, Table, with_error
from advbnn.report.style import Look

_WORDS = (
    "How much the loss can increase around an image. Bars: the first-order estimate within the radius, from the "
    "gradient at the image (eq. 16). Diamonds: the increase that the attack achieved (eq. 14). A defence with small "
    "values on training images and large ones on test images has overfitted. A diamond far above its bar means that "
    "the loss is not linear within the radius. Error bars show two standard errors."
)
_VALUES = {
    "first_order": "first-order estimate",
    "per_sample": "estimate per weight sample",
    "increase": "increase under attack",
    "loss": "loss",
}


def smoothness_section(records: Records, looks: Mapping[str, Look]) -> Section | None:
    groups: dict[str, list[Record]] = {}
    for record in records.where(kind="lipschitz"):
        groups.setdefault(record.ball_title, []).append(record)
    figures = [_figure(ball, Records(group), looks) for ball, group in groups.items()]
    title = "Local Lipschitz value"
    return Section(name="lipschitz", title=title, words=[_WORDS], figures=figures) if figures else None


def _figure(ball: str, found: Records, looks: Mapping[str, Look]) -> Figure:
    ordered = [r for label in looks for r in found.where(label=label)]
    drawn = [lipschitz_bar(looks[r.model.label], r.name, r.details) for r in ordered]
    name = f"lipschitz-{ball.replace(' ', '-')}"
    rows = []
    for r in ordered:
        cells = [with_error(r.details[key]["mean"], r.details[key]["se"]) for key in _VALUES]
        rows.append([Cell(looks[r.model.label].title), Cell(r.name), *cells])
    columns, caption = ["model", "images", *_VALUES.values()], "Means over images, in nats, with standard errors."
    values = " ".join(f"{bar.label}: {bar.length:.3f}." for bar in drawn)
    return Figure(
        name=name,
        caption=f"Increase of the loss within {ball}.",
        alt=f"Bars of the local Lipschitz value within {ball}. {values}",
        draw=partial(plots.bars_svg, name, drawn, x_label="increase of the loss, nats"),
        numbers=Table(name=name, caption=caption, columns=columns, rows=rows),
    )


def lipschitz_bar(look: Look, part: str, details: Mapping[str, Any]) -> plots.Bar:
    """The bar of a model on `"train"` or `"test"` images, from the details of its record."""
    value, mark, label = details["first_order"], details["increase"]["mean"], f"{look.title}, {part}"
    return plots.Bar(
        look=look, label=label, length=value["mean"], error=2 * value["se"], mark=mark, pale=part == "train"
    )
