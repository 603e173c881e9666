from pathlib import Path

import pytest

import made_up_records as made_up
from advbnn.errors import ArgumentError
from advbnn.evaluation.records import Records
from advbnn.paper.docs_tables import refresh, refreshed
from advbnn.report.compose import compose
from made_up_reproductions import CIFAR10, radius_records

DOCUMENT = """# Results

<!-- table: digits/headline -->
typed by hand
<!-- end -->

and beside it

<!-- table: runs/affinity -->
<!-- end -->
"""

AUDITED = made_up.clean().where(label="adv") + made_up.audits().where(label="adv", eps=0.035)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    AUDITED.save(folder / "digits.json")
    made_up.clean().save(folder / "runs" / "clean.json")
    made_up.transfers().save(folder / "runs" / "transfer.json")
    return folder


@pytest.fixture
def reproductions(tmp_path: Path) -> Path:
    for name, adv_bnn in (("good", 0.5), ("cifar10-bad", 0.1)):
        CIFAR10.write(tmp_path / name, test_images=10_000)
        reached = {"adv": 0.3, "adv_bnn": adv_bnn}
        records = radius_records(CIFAR10.protocol, lambda label, eps, at=reached: at.get(label, 0.0))
        Records(records).save(tmp_path / name / "records" / "radius.json")
    return tmp_path


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def test_blocks_are_filled_and_the_rest_is_left_alone(results: Path) -> None:
    fresh = refreshed(DOCUMENT, results)
    headline = compose(AUDITED).tables()["headline"].markdown()
    assert fresh.startswith(
        f"# Results\n\n<!-- table: digits/headline -->\n\n{headline}\n<!-- end -->\n\nand beside it"
    )
    assert "| from BNN | 0.82 19.3 % |" in fresh
    assert refreshed(fresh, results) == fresh
    assert refreshed("no tables", results) == "no tables"


def test_verdicts_of_several_reproductions(reproductions: Path) -> None:
    head, _, *claims = rows(refreshed("<!-- table: good+cifar10-bad/verdicts -->\n<!-- end -->", reproductions))
    assert head == ["no.", "claim", "good", "cifar10-bad"]
    (verdicts,) = ([row[2], row[3]] for row in claims if "more robust than adversarial training" in row[1])
    assert verdicts == ["**reproduced**", "**not reproduced**"]


def test_a_summary_has_a_row_per_defence(reproductions: Path) -> None:
    text = "<!-- table: good+cifar10-bad/summary:0.035,0.07 -->\n<!-- end -->"
    head, _, *found = rows(refreshed(text, reproductions))
    assert (len(head), head[2:5]) == (8, ["0.035: PGD-20", "0.035: averaged", "0.035: worst case"])
    by_name = {row[0]: row[1:] for row in found}
    assert by_name["Adv-BNN (the paper)"] == ["79.7", "45.4", "-", "-", "18.6", "-", "-"]
    assert by_name["Adv-BNN"][1].startswith("50.0 [")
    assert by_name["Adv-BNN (bad)"][1].startswith("10.0 [")
    assert by_name["Adv. training"][2] == "-"  # nothing to average
    head, *_ = rows(refreshed("<!-- table: good/summary -->\n<!-- end -->", reproductions))
    assert [name[:5] for name in head[2::3]] == ["0.015", "0.035", "0.055", "0.07:"]
    with pytest.raises(ArgumentError, match="radii='small'"):
        refreshed("<!-- table: good/summary:small -->\n<!-- end -->", reproductions)


def test_only_documents_out_of_date_are_written(results: Path, tmp_path: Path) -> None:
    document, other = tmp_path / "README.md", tmp_path / "other.md"
    document.write_text(DOCUMENT)
    other.write_text("text")
    assert refresh([document, other], results, check=True) == [document]
    assert document.read_text() == DOCUMENT
    assert refresh([document, other], results) == [document]
    assert "typed by hand" not in document.read_text()
    assert refresh([document, other], results) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table: digits/headlin -->\n<!-- end -->", "headlin.*'headline'"),
        ("<!-- table: cifar10/headline -->\n<!-- end -->", "no records of 'cifar10'"),
        ("<!-- table: digits/headline -->\n", "digits/headline .*<!-- end -->"),
    ],
)
def test_mistakes_are_named_with_their_document(results: Path, tmp_path: Path, text: str, message: str) -> None:
    document = tmp_path / "README.md"
    document.write_text(text)
    with pytest.raises(ArgumentError, match=f"README.md: .*{message}"):
        refresh([document], results)
    assert document.read_text() == text
