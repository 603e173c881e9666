"""Writes a report: one HTML file that needs no other, and the same as markdown and CSV."""

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from advbnn.errors import explain_missing_package
from advbnn.evaluation.records import Record, Records
from advbnn.machine.files import write_atomically
from advbnn.report.compose import compose
from advbnn.report.elements import Cell, Contents, Section, Table, escaped
from advbnn.report.images import AttackedImage, by_model, data_uri

Images = Mapping[str, Sequence[AttackedImage]]
"""Attacked images by the label of their model."""


def write_report(
    records: Iterable[Record],
    out: str | Path,
    images: Sequence[AttackedImage] | None = None,
    defenses: Mapping[str, str] | None = None,
    *,
    table: Table | None = None,
    claims: Sequence[Section] = (),
) -> Path:
    """Writes `report.html`, `report.md` and `report.csv` into a folder, and returns the path of the HTML file.

    It begins with the answer, a picture and a table. There is a section for everything that was measured.

    Args:
        records: of any number of models, all measured on the same data set.
        out: the folder; created if it does not exist.
        images: single images to show; see `attacked_images`.
        defenses: the defence of a model by its label, such as `{"run3": "adv"}`; shown with the label.
        table: shown at the beginning instead of the usual table of accuracies.
        claims: sections that come directly after it.
    """
    collected = records if isinstance(records, Records) else Records(records)
    contents = compose(collected, defenses, table=table, claims=claims)
    shown = by_model(images or (), list(contents.looks))
    texts = {"md": markdown(contents, shown), "csv": collected.to_csv(), "html": html(contents, shown)}
    for kind, text in texts.items():
        write_atomically(Path(out) / f"report.{kind}", text.encode())
    return Path(out) / "report.html"


def html(contents: Contents, images: Images) -> str:
    own = files("advbnn.report")
    page, style = (own.joinpath(name).read_text("utf-8") for name in ("template.html.j2", "style.css"))
    models = {look.title: look for look in contents.looks.values()}
    return filled(page, report=contents, images=images, style=style, models=models, data_uri=data_uri)


def filled(template: str, **values: Any) -> str:
    with explain_missing_package("a page needs jinja2: pip install 'advbnn[report]'"):
        import jinja2
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(template).render(**values).strip() + "\n"


def markdown(contents: Contents, images: Images) -> str:
    """The report as markdown, without plots."""
    parts = [f"# {escaped(contents.title)}", *(_section(section) for section in contents.sections)]
    if images:
        parts += ["## Single images under attack", _predictions(contents, images).markdown()]
    parts += ["## Provenance", *(table.markdown() for table in contents.provenance)]
    if contents.commands:
        parts.append(code(contents.commands))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def code(commands: Sequence[str]) -> str:
    """Commands as a block of code in markdown; its fence is longer than any in the commands."""
    text = "\n".join(commands)
    fence = "`" * max(3, *(len(found) + 1 for found in re.findall("`+", text)), 0)
    return f"{fence}sh\n{text}\n{fence}"


def _section(section: Section) -> str:
    numbers = [figure.numbers for figure in section.figures if figure.numbers is not None]
    notices = [
        f"- **{escaped(notice.title)}.** {escaped(f'{notice.words} {notice.advice}')}".rstrip()
        for notice in section.notices
    ]
    words = map(escaped, section.words)
    parts = [f"## {escaped(section.title)}", *words, *(["\n".join(notices)] if notices else [])]
    parts += [table.markdown().strip() for table in section.tables]
    after = map(escaped, section.after)
    return "\n\n".join([*parts, *after, *(table.markdown().strip() for table in [*numbers, *section.folded])])


def _predictions(contents: Contents, images: Images) -> Table:
    rows = []
    for label, of_model in images.items():
        for image in of_model:
            shown = [contents.looks[label].title, f"{image.attack} at {image.eps:.4g}", image.truth]
            predicted = [Cell(p.label, f"({p.probability:.0%}, {p.entropy:.2f})") for p in (image.before, image.after)]
            rows.append([*map(Cell, shown), *predicted])
    columns = ["model", "attack", "true class", "prediction before", "prediction after"]
    caption = "In brackets the probability of the prediction and its entropy in nats."
    return Table(name="images", caption=caption, columns=columns, rows=rows)
