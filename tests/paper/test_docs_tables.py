from pathlib import Path

import pytest

import made_up_records as made_up
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


def test_blocks_are_filled_and_the_rest_is_left_alone(results: Path) -> None:
    fresh = refreshed(DOCUMENT, results)
    headline = compose(AUDITED).tables()["headline"].markdown()
    assert fresh.startswith(
        f"# Results\n\n<!-- table: digits/headline -->\n\n{headline}\n<!-- end -->\n\nand beside it"
    )
    assert "| from BNN | 0.82 19.3 % |" in fresh
    assert refreshed(fresh, results) == fresh
    assert refreshed("no tables", results) == "no tables"


def test_runs_beside_the_records_tell_which_defence_it_is(results: Path) -> None:
    run = results / "runs" / "runs" / "bnn"
    run.mkdir(parents=True)
    (run / "config.toml").write_text('defense = "rse"')
    (run / "run.json").write_text("{}")
    assert "| from RSE (bnn) |" in refreshed(DOCUMENT, results)


def test_verdicts_of_several_reproductions_stand_side_by_side(tmp_path: Path) -> None:
    for name, adv_bnn in (("good", 0.5), ("bad", 0.1)):
        CIFAR10.write(tmp_path / name, test_images=10_000)
        reached = {"adv": 0.3, "adv_bnn": adv_bnn}
        records = radius_records(CIFAR10.protocol, lambda label, eps, at=reached: at.get(label, 0.0))
        Records(records).save(tmp_path / name / "records" / "radius.json")
    fresh = refreshed("<!-- table: good+bad/verdicts -->\n<!-- end -->", tmp_path)
    assert "| no. | claim | good | bad |" in fresh
    (row,) = (line for line in fresh.splitlines() if "more robust than adversarial training" in line)
    assert row.endswith("| **reproduced** | **not reproduced** |")


def test_only_what_is_out_of_date_is_written(results: Path, tmp_path: Path) -> None:
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
        (
            "<!-- table: digits/headlin -->\n<!-- end -->",
            "table of digits='headlin' is unknown.*did you mean 'headline'",
        ),
        ("<!-- table: digits -->\n<!-- end -->", "table of digits='' is unknown"),
        ("<!-- table: cifar10/headline -->\n<!-- end -->", "there are no records of 'cifar10': neither the file"),
        ("<!-- table: digits/headline -->\n", "the table digits/headline has no <!-- end -->; write it"),
        (f"<!-- table: digits/flags -->\n\n{DOCUMENT}", "digits/flags has no <!-- end --> before the next one begins"),
    ],
)
def test_mistakes_are_named_with_their_document(results: Path, tmp_path: Path, text: str, message: str) -> None:
    document = tmp_path / "README.md"
    document.write_text(text)
    with pytest.raises(ValueError, match=f"README.md: .*{message}"):
        refresh([document], results)
    assert document.read_text() == text
