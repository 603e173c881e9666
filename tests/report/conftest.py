"""A report of everything, made once."""

from pathlib import Path

import pytest

import made_up_records as made_up
from advbnn.report import write_report
from elements import Elements


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the report of everything is."""
    images = [made_up.picture(label, fooled=label != "adv_bnn") for label in made_up.LABELS for _ in range(3)]
    return write_report(made_up.everything(), tmp_path_factory.mktemp("report"), images).parent


@pytest.fixture(scope="session")
def elements(folder: Path) -> Elements:
    """Its page."""
    return Elements((folder / "report.html").read_text())
