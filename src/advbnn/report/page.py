"""A report as one HTML file that needs no other."""

from collections.abc import Mapping, Sequence
from importlib.resources import files

from advbnn.errors import MissingPackageError
from advbnn.report.compose import Report
from advbnn.report.pictures import AttackedImage
from advbnn.report.png import data_uri


def page(report: Report, images: Mapping[str, Sequence[AttackedImage]]) -> str:
    """The page.

    Args:
        report: its contents.
        images: attacked images, by the label of their model.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingPackageError("a report needs jinja2: pip install 'advbnn[report]'") from error
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["data_uri"] = data_uri
    folder = files("advbnn.report")
    template = environment.from_string(folder.joinpath("template.html.j2").read_text(encoding="utf-8"))
    style = folder.joinpath("style.css").read_text(encoding="utf-8")
    models = {look.title: look for look in report.looks.values()}
    return template.render(report=report, images=images, style=style, models=models).strip() + "\n"
