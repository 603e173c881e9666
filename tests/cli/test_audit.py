"""The command that audits finished runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from advbnn.cli.audit import audit
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.worst_case import Audit
from advbnn.evaluation.records import Records

app = typer.Typer()
app.command()(audit)


def advbnn_audit(*arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"])


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the quick level so quick that it says little."""
    less = {"eot": (1, 2), "steps": (1, 2), "apgd_steps": 2, "square_queries": 4, "nes_queries": 30}
    less["max_weight_samples"] = 20
    monkeypatch.setitem(LEVELS, "quick", replace(LEVELS["quick"], **less))


def test_shows_attacks_worst_case_and_flags_and_keeps_the_record(runs: Path) -> None:
    shown = advbnn_audit(
        runs / "robust", "--level", "quick", "--samples", 2, "--limit", 100, "--transfer-from", runs / "plain"
    )
    assert shown.exit_code == 0, shown.output
    for words in ("authors' PGD-20", "from its mean network", "from plain", "survivors", "worst-case robust accuracy"):
        assert words in shown.output
    found = Audit(Records.load(runs / "robust" / "records.json"))
    (record,) = found.records
    # the radius of training
    assert (record.model.label, record.n, record.samples, record.threat.eps) == ("robust", 100, 2, 0.05)
    assert str(found).splitlines()[1] in shown.output


def test_quick_looks_at_two_hundred_images_of_each_radius(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "records.json"
    shown = advbnn_audit(runs / "plain", "--level", "quick", "--eps", 0.1, "--eps", 0.05, "--out", out)
    assert shown.exit_code == 0, shown.output
    assert [(record.threat.eps, record.n) for record in Records.load(out)] == [(0.05, 200), (0.1, 200)]


def test_says_what_is_wrong(runs: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ([tmp_path], "is not a run folder"),
        ([runs / "plain"], "give --eps"),
        ([runs / "robust", "--limit", 0], "limit must be a number of images"),
    ):
        refused = advbnn_audit(*arguments)
        assert refused.exit_code == 1
        assert message in refused.output
