"""advbnn uncertainty on a tiny run: what it prints, what it records, and that the report shows it."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from advbnn.cli.app import app
from advbnn.evaluation.records import Records
from advbnn.evaluation.uncertainty import SCORES
from advbnn.report.compose import compose

QUICK = ["--limit", "120", "--samples", "2", "--seeds", "2", "--device", "cpu", "--steps", "3"]


def advbnn(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.filterwarnings("default::advbnn.evaluation.accuracy.SmallSampleWarning")
def test_warns_once_and_finds_no_disagreement_without_randomness(runs: Path, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "records.json"]
    few = ["--attack", "pgd", "--eps", 0.1, "--limit", 20, "--steps", 1, "--device", "cpu"]
    shown = advbnn("uncertainty", runs / "plain", *few, *out)
    assert shown.exit_code == 0 and shown.output.count("warning: 20 images") == 1
    detected = Records.load(out[1]).only(kind="detection").details["auroc"]
    assert detected["mutual_information"]["mean"] == 0.5


def test_measures_clean_attacked_and_foreign_images_for_the_report(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "records.json"
    shown = advbnn("uncertainty", runs / "robust", "--eps", 0.1, "--foreign", "digits", "--out", out, *QUICK)
    assert shown.exit_code == 0, shown.output
    assert "ECE" in shown.output and "evasive 3 EOT 10 at linf 0.1" in shown.output and "undetected" in shown.output
    records = Records.load(out)
    assert [(record.kind, record.name) for record in records] == [
        ("uncertainty", "clean"),
        ("uncertainty", "pgd 3 EOT 10"),
        ("detection", "pgd 3 EOT 10"),
        ("uncertainty", "evasive 3 EOT 10"),
        ("detection", "evasive 3 EOT 10"),
        ("uncertainty", "overconfident 3 EOT 10"),
        ("detection", "overconfident 3 EOT 10"),
        ("uncertainty", "underconfident 3 EOT 10"),
        ("detection", "underconfident 3 EOT 10"),
        ("detection", "digits"),
    ]
    for record in records.where(kind="detection"):
        assert set(record.details["auroc"]) == set(SCORES)
    sections = {section.name for section in compose(records).sections}
    assert {"uncertainty", "detection"} <= sections


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [(["--attack", "nothing"], 2, "nothing"), (["--attack", "cw", "--norm", "l1"], 2, "l1"), ([], 1, "--eps")],
)
def test_refuses_what_it_cannot_measure(runs: Path, arguments: list[str], status: int, message: str) -> None:
    refused = advbnn("uncertainty", runs / "plain", *arguments, *QUICK)
    assert refused.exit_code == status
    assert message in refused.output


def test_an_unknown_data_set_is_refused_before_anything_is_measured(runs: Path, tmp_path: Path) -> None:
    arguments = ["--eps", 0.1, "--foreign", "mnist", "--out", tmp_path / "records.json", *QUICK]
    refused = advbnn("uncertainty", runs / "robust", *arguments)
    assert refused.exit_code == 1 and "--foreign='mnist'" in refused.output
    assert not any(tmp_path.glob("records*"))
