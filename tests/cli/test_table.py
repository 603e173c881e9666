"""advbnn table: tables and pictures of a report for a paper."""

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import made_up_records as made_up
from advbnn.attacks.threat import Threat
from advbnn.cli.app import app
from advbnn.evaluation.records import Records


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "records.json"
    (made_up.clean() + made_up.audits()).save(path)
    return path


def printed(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["table", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_prints_the_headline_in_each_format_with_its_caption(records: Path) -> None:
    worst = made_up.audits().only(label="adv", eps=0.035)
    number = f"{100 * worst.accuracy:.1f}"
    rows = list(csv.DictReader(io.StringIO(printed(records, "--format", "csv"))))
    (row,) = [row for row in rows if (row["model"], row["attack"]) == ("Adv. training", "worst case (quick)")]
    assert row["linf 0.035"].split()[0] == number
    for format, mark in (("markdown", f"**{number}**"), ("latex", rf"\textbf{{{number}}}")):
        text = printed(records, "--format", format)
        assert mark in text
        # n, seeds, attacks and intervals
        for words in ("400 images of digits", "20 weight samples, 3 seeds", "PGD-20", "quick audit", "interval"):
            assert words in text


def test_a_picture_makes_its_folder_and_a_folder_is_none(
    records: Path, tmp_path: Path, advbnn: Callable[..., str]
) -> None:
    printed(records, "--figure", tmp_path / "new" / "x.png")
    assert (tmp_path / "new" / "x.png").stat().st_size > 1000
    assert "--figure" in advbnn("table", records, "--figure", tmp_path, status=2)


def test_writes_the_picture_beside_it(records: Path, tmp_path: Path) -> None:
    for ending in ("pdf", "svg"):
        printed(records, "--figure", tmp_path / f"picture.{ending}")
        assert (tmp_path / f"picture.{ending}").stat().st_size > 1000


def test_writes_and_names_a_picture_for_each_norm(records: Path, tmp_path: Path) -> None:
    other = [replace(record, threat=Threat("l2", record.threat.eps)) for record in made_up.audits() if record.threat]
    Records([*Records.load(records), *other]).save(records)
    result = CliRunner().invoke(app, ["table", str(records), "--figure", str(tmp_path / "picture.svg")])
    for norm in ("linf", "l2"):
        assert (tmp_path / f"picture-{norm}.svg").is_file() and f"picture-{norm}.svg: " in result.stderr


def test_other_tables_by_name_and_helpful_refusals(records: Path, tmp_path: Path, advbnn: Callable[..., str]) -> None:
    assert "black box" in printed(records, "--name", "attack_suite")
    assert "headline" in advbnn("table", records, "--name", "headlin", status=1)
    assert ".svg" in advbnn("table", records, "--figure", tmp_path / "picture.gif", status=2)
    clean = tmp_path / "clean.json"
    made_up.clean().save(clean)
    assert "--figure" in advbnn("table", clean, "--figure", tmp_path / "picture.pdf", status=1)
