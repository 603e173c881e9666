"""Records as a report to look at: one HTML file, and the same in markdown and as comma-separated values."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from advbnn.evaluation.records import Record, Records
from advbnn.files import write_atomically
from advbnn.report.compose import compose
from advbnn.report.markdown import markdown
from advbnn.report.page import page
from advbnn.report.pictures import AttackedImage, by_model
from advbnn.report.section import Section


def write_report(
    records: Iterable[Record],
    out: str | Path,
    images: Sequence[AttackedImage] | None = None,
    first: Sequence[Section] = (),
    defenses: Mapping[str, str] | None = None,
) -> Path:
    """Writes `report.html`, `report.md` and `report.csv` into a folder.

    There is a section for everything that there are records of, and for nothing else.

    Args:
        records: of any number of models, all measured on the same data set.
        out: the folder; made if there is none.
        images: single images to show, see `attacked_images`.
        first: sections of your own, which come before the others.
        defenses: by the label of a model, which defence it has, such as `{"run3": "adv"}`; named with its label then.

    Returns:
        the path of the HTML file.
    """
    collected = records if isinstance(records, Records) else Records(records)
    report = compose(collected, first, defenses)
    shown = by_model(images or (), list(report.looks))
    contents = {
        "report.md": markdown(report, shown),
        "report.csv": collected.to_csv(),
        "report.html": page(report, shown),
    }
    for name, text in contents.items():
        write_atomically(Path(out) / name, text.encode())
    return Path(out) / "report.html"
