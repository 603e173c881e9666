"""The local Lipschitz value of the models on training and on test images (eq. 14 to 16)."""

from collections.abc import Mapping
from functools import partial

from advbnn.evaluation.records import Record, Records
from advbnn.report import plots
from advbnn.report.section import Figure, Section
from advbnn.report.select import ball_title, labels_of
from advbnn.report.style import Look
from advbnn.report.tables import Cell, Table, with_error

_WORDS = (
    "How steep the loss is around an image: the bar is the most that the loss can grow within the radius, judged by "
    "its slope at the image (eq. 16), and the diamond how much the attack really made it grow (eq. 14). A defence that "
    "makes training images flat and leaves test images steep has learned them by heart. A diamond far above its bar "
    "says that the slope does not tell the whole story. Lines across the ends are twice the standard error."
)
_VALUES = {
    "first_order": "steepness",
    "per_sample": "steepness, each draw known",
    "increase": "growth by the attack",
    "loss": "loss",
}


def steepness_section(records: Records, looks: Mapping[str, Look]) -> Section | None:
    """Bars of the local Lipschitz value."""
    found = records.where(kind="lipschitz")
    groups: dict[str, list[Record]] = {}
    for record in found:
        groups.setdefault(ball_title(record), []).append(record)
    figures = [_figure(ball, Records(group), looks) for ball, group in groups.items()]
    if not figures:
        return None
    return Section(name="lipschitz", title="How steep the loss is", words=[_WORDS], figures=figures)


def _figure(ball: str, found: Records, looks: Mapping[str, Look]) -> Figure:
    ordered = [r for label in looks if label in labels_of(found) for r in found.where(label=label)]
    drawn = [
        plots.Bar(
            look=looks[r.model.label],
            label=f"{looks[r.model.label].title}, {r.name}",
            length=r.details["first_order"]["mean"],
            error=2 * r.details["first_order"]["se"],
            mark=r.details["increase"]["mean"],
            pale=r.name == "train",
        )
        for r in ordered
    ]
    name = f"lipschitz-{ball.replace(' ', '-')}"
    rows = [
        [
            Cell(looks[r.model.label].title),
            Cell(r.name),
            *(with_error(r.details[key]["mean"], r.details[key]["se"]) for key in _VALUES),
        ]
        for r in ordered
    ]
    return Figure(
        name=name,
        caption=f"Growth of the loss within {ball}.",
        alt=f"Bars of the local Lipschitz value within {ball}. "
        + " ".join(f"{bar.label}: {bar.length:.3f}." for bar in drawn),
        draw=partial(plots.bars, name, drawn, x_label="growth of the loss, nats"),
        numbers=Table(
            name=name,
            caption="Means over images, in nats, with their standard errors.",
            columns=["model", "images", *_VALUES.values()],
            rows=rows,
        ),
    )
