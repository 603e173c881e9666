"""The benchmarks import only what exists, and their tables are those of the documents; they are run by hand."""

import json
import runpy
from pathlib import Path

import pytest

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
