"""The benchmarks import only what exists; they are run by hand."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_imports_resolve(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(script.parent)
    names = runpy.run_path(str(script))
    assert script.stem == "common" or callable(names["main"])
