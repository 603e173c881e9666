"""A report as markdown: all of its words and numbers, without plots."""

from collections.abc import Mapping, Sequence

from advbnn.report.compose import Report
from advbnn.report.pictures import Answer, AttackedImage
from advbnn.report.section import Section
from advbnn.report.tables import Cell, Table


def markdown(report: Report, images: Mapping[str, Sequence[AttackedImage]]) -> str:
    """The text; arguments as for `page`."""
    parts = [f"# {report.title}", *(_section(section) for section in report.sections)]
    if images:
        parts += ["## Single images under attack", _answers(report, images).markdown()]
    parts += ["## Where the numbers come from", *(table.markdown() for table in report.provenance.tables)]
    if report.provenance.commands:
        parts.append("```sh\n" + "\n".join(report.provenance.commands) + "\n```")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _section(section: Section) -> str:
    numbers = [figure.numbers for figure in section.figures if figure.numbers is not None]
    notices = [f"- **{notice.title}.** {notice.words} {notice.advice}".rstrip() for notice in section.notices]
    parts = [f"## {section.title}", *section.words, *(["\n".join(notices)] if notices else [])]
    return "\n\n".join(
        [
            *parts,
            *(table.markdown().strip() for table in section.tables),
            *section.after,
            *(table.markdown().strip() for table in [*numbers, *section.folded]),
        ]
    )


def _answers(report: Report, images: Mapping[str, Sequence[AttackedImage]]) -> Table:
    rows = [
        [
            Cell(report.looks[label].title),
            Cell(f"{image.attack} at {image.eps:.4g}"),
            Cell(image.truth),
            _answer(image.before),
            _answer(image.after),
        ]
        for label, of_model in images.items()
        for image in of_model
    ]
    columns = ["model", "attack", "image of", "answer before", "answer after"]
    caption = "In brackets the probability of the answer and its entropy in nats."
    return Table(name="images", caption=caption, columns=columns, rows=rows)


def _answer(answer: Answer) -> Cell:
    return Cell(answer.label, f"({answer.probability:.0%}, {answer.entropy:.2f})")
