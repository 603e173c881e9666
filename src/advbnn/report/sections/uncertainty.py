"""The quality of uncertainty estimates: calibration, selective prediction, and detection of attacks."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from advbnn.evaluation.records import Record, Records
from advbnn.report import plots
from advbnn.report.elements import NOTHING, Cell, Figure, Section, Table, percent, with_error
from advbnn.report.select import condition, images_of, labels_of
from advbnn.report.style import Look

_CALIBRATION = (
    "A calibrated model is correct on 80 % of the predictions that it makes with a confidence of 80 %. Each dot of the "
    "diagrams is a group of predictions, and its size their number. On the dotted line the model is calibrated, below "
    "it overconfident. Filled dots: clean images. Rings: attacked images."
)
_SELECTIVE = (
    "A model may abstain when it is uncertain. The curves show its error on the images that it does classify. With a "
    "useful uncertainty the error decreases to the left."
)
_DETECTION = (
    "How well the uncertainty of the model separates attacked or out-of-distribution images from clean ones: 1 is a "
    "perfect detector, 0.5 is chance, and below 0.5 the attack fools the detector. The relevant attack is one that "
    "takes the detector into account."
)
_ABSTENTION = (
    "A model that abstains above an entropy, chosen so that it classifies the given share of the clean images. An "
    "attack that lowers the uncertainty hides errors; one that raises it makes the model abstain."
)
_ABSTAINING = {
    "clean_accuracy": "accuracy on these, clean, %",
    "classified": "attacked images classified, %",
    "accuracy": "accuracy on these, attacked, %",
    "undetected": "wrong and not detected, %",
}
_MEASURES = {"nll": "NLL", "brier": "Brier", "ece": "ECE", "aurc": "AURC"}
_MEASURES |= {"entropy": "entropy", "mutual_information": "disagreement"}
_SCORES = {
    "entropy": "entropy",
    "expected_entropy": "expected entropy",
    "mutual_information": "disagreement",
    "least_confidence": "1 - confidence",
}


def uncertainty_section(records: Records, looks: Mapping[str, Look]) -> Section | None:
    """Reliability diagrams, risk-coverage curves and scores."""
    found = records.where(kind="uncertainty")
    if not found:
        return None
    shown = [look for label, look in looks.items() if label in labels_of(found)]
    conditions = list(dict.fromkeys(condition(r) for r in found))
    by_model = {look.label: {condition(r): r for r in found.where(label=look.label)} for look in shown}
    figures = [_reliability(i, look, by_model[look.label]) for i, look in enumerate(shown)]
    figures += [_selective(i, name, shown, by_model) for i, name in enumerate(conditions)]
    title, words = "Calibration and selective prediction", [_CALIBRATION, _SELECTIVE]
    tables = [_scores(shown, by_model, found)]
    return Section(name="uncertainty", title=title, words=words, figures=figures, tables=tables)


def detection_section(records: Records, looks: Mapping[str, Look]) -> Section | None:
    """AUROC of every score against every kind of input."""
    found = records.where(kind="detection")
    if not found:
        return None
    rows = []
    for look in looks.values():
        for record in found.where(label=look.label):
            kind = condition(record)
            if record.against is not None:
                kind = f"{'attacked ' if record.threat else ''}images of {record.against.name}"
            for which, key in ((kind, "auroc"), (f"{kind}, successful only", "auroc_of_successes")):
                if values := record.details.get(key):
                    rows.append([Cell(look.title), Cell(which), *(_spread(values.get(score)) for score in _SCORES)])
    caption = f"AUROC, with standard deviations over the seeds. {images_of(found)}."
    columns = ["model", "separated from clean images", *_SCORES.values()]
    table = Table(name="detection", caption=caption, columns=columns, rows=rows)
    abstaining = _abstention(found, looks)
    words, tables = [_DETECTION], [table]
    if abstaining.rows:
        words, tables = [*words, _ABSTENTION], [*tables, abstaining]
    return Section(name="detection", title="Detection of attacks", words=words, tables=tables)


def _abstention(found: Records, looks: Mapping[str, Look]) -> Table:
    """What a classifier does that abstains above an entropy; empty for records that do not say."""
    rows = []
    for look in looks.values():
        for record in found.where(label=look.label):
            for row in record.details.get("abstention", ()):
                numbers = (row[name] for name in _ABSTAINING)
                cells = (NOTHING if number is None else Cell(percent(number["mean"])) for number in numbers)
                rows.append([Cell(look.title), Cell(condition(record)), Cell(percent(row["coverage"])), *cells])
    columns = ["model", "images", "clean images classified, %", *_ABSTAINING.values()]
    caption = f"Abstention for attacked and other images. {images_of(found)}."
    return Table(name="abstention", caption=caption, columns=columns, rows=rows)


def _reliability(index: int, look: Look, by_condition: Mapping[str, Record]) -> Figure:
    found = by_condition.items()
    drawn = [_dots(record.details["reliability"], hollow=record.threat is not None) for _, record in found]
    errors = [f"{name}: expected calibration error {record.details['ece']['mean']:.3f}." for name, record in found]
    name, alt = f"reliability-{index + 1}", f"Reliability diagram of {look.title}. {' '.join(errors)}"
    draw = partial(plots.reliability_svg, name, look, drawn)
    return Figure(name=name, caption=look.title, alt=alt, draw=draw, small=True)


def _dots(bars: Mapping[str, Any], hollow: bool) -> plots.Dots:
    kept = [row for row in zip(bars["confidence"], bars["accuracy"], bars["count"], strict=True) if row[2]]
    x, y, share = zip(*((100 * x, 100 * y, count / sum(bars["count"])) for x, y, count in kept), strict=True)
    return plots.Dots(x=x, y=y, share=share, hollow=hollow)


def _selective(index: int, name: str, shown: Sequence[Look], by_model: Mapping[str, Mapping[str, Record]]) -> Figure:
    curves = {
        look: by_model[look.label][name].details["risk_coverage"] for look in shown if name in by_model[look.label]
    }
    drawn = [
        plots.Line(look=look, x=[100 * c for c in curve["coverage"]], y=[100 * r for r in curve["risk"]])
        for look, curve in curves.items()
    ]
    # a curve with hardly any errors should look like one
    top = max(5.0, 1.05 * max(max(line.y) for line in drawn))
    identity, axis = f"risk-coverage-{index + 1}", "coverage, %"
    columns, caption = [axis, *(look.title for look in curves)], f"Error in % on the covered images, {name}."
    rows = [[Cell(f"{x:.0f}"), *(Cell(f"{line.y[i]:.1f}") for line in drawn)] for i, x in enumerate(drawn[0].x)]
    ends = " ".join(f"{line.look.title}: error {line.y[-1]:.1f} % at full coverage." for line in drawn)
    return Figure(
        name=identity,
        caption=f"Selective prediction: {name}.",
        alt=f"Error against coverage, {name}. {ends}",
        draw=partial(plots.lines_svg, identity, plots.Panel(lines=drawn, x_label=axis), y_label="error, %", top=top),
        numbers=Table(name=identity, caption=caption, columns=columns, rows=rows),
    )


def _scores(shown: Sequence[Look], by_model: Mapping[str, Mapping[str, Record]], found: Records) -> Table:
    rows = []
    for look in shown:
        for name, record in by_model[look.label].items():
            accuracy = Cell(percent(record.accuracy)) if record.correct else NOTHING
            cells = [_spread(record.details.get(measure)) for measure in _MEASURES]
            rows.append([Cell(look.title), Cell(name), accuracy, *cells])
    return Table(
        name="uncertainty",
        caption="Smaller is better for NLL (negative log-likelihood), Brier, ECE (expected calibration error) and AURC "
        "(area under the risk-coverage curve). Entropy and disagreement of the weight samples are in nats. "
        f"With standard deviations over the seeds. {images_of(found)}.",
        columns=["model", "images", "accuracy, %", *_MEASURES.values()],
        rows=rows,
    )


def _spread(values: Mapping[str, float] | None) -> Cell:
    return NOTHING if values is None else with_error(values["mean"], values["sd"])
