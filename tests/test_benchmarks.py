"""The benchmarks import only what exists, and their tables are those of the documents; they are run by hand."""

import json
import runpy
import sys
from datetime import date
from pathlib import Path

import pytest

from advbnn.training.provenance import git_state

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_imports_resolve(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(script.parent)
    names = runpy.run_path(str(script))
    assert script.stem == "common" or callable(names["main"])


@pytest.mark.parametrize(
    ("name", "file"), [("attacks", "attacks-cpu"), ("threads", "threads-cpu"), ("threads", "threads-cpu-commands")]
)
def test_tables_of_the_documents_come_from_the_records(name: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    record = json.loads((ROOT / "benchmarks" / "records" / f"{file}.json").read_text(encoding="utf-8"))
    table = runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"))["table"](record)
    assert table in (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["trades", "adv+trade", "adversarial", "adv+", "adv_bnn+awp+bnn"])
def test_a_step_of_an_unknown_defence_is_refused_with_the_known_ones(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    step = runpy.run_path(str(ROOT / "benchmarks" / "step.py"))
    monkeypatch.setattr(sys, "argv", ["step.py", "--defenses", name])
    with pytest.raises(SystemExit):
        step["main"]()
    said = capsys.readouterr().err
    assert repr(name) in said and all(known in said for known in (*step["DEFENSES"], *step["EXTRAS"]))
    assert step["defense_name"]("adv_bnn+trades+awp") == "adv_bnn+trades+awp"


def test_rows_have_the_date_and_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    common, out = runpy.run_path(str(ROOT / "benchmarks" / "common.py")), tmp_path / "record.json"
    for number in range(2):  # a file may be filled by several calls
        common["Rows"](out).add({"number": number})
    rows = json.loads(out.read_text())["rows"]
    assert [row["number"] for row in rows] == [0, 1]
    for row in rows:
        date.fromisoformat(row["date"])
        assert row["commit"] == (None if (state := git_state(ROOT)) is None else state["commit"])
