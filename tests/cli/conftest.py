"""Runs for the commands that evaluate them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from advbnn.cli.app import app
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.training.config import Config
from advbnn.training.loop import fit


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two short runs, `plain` and `robust`; tests use copies."""
    folder = tmp_path_factory.mktemp("trained")
    for name, defense in (("plain", "none"), ("robust", "adv_bnn")):
        schedule = {"kind": "constant", "epochs": 2}
        table: dict[str, Any] = {"data": "digits", "defense": defense, "architecture": "mlp", "schedule": schedule}
        if defense == "adv_bnn":
            table["attack"] = {"steps": 1, "threat": {"eps": 0.05}}
        config = Config.from_table(table)
        model = config.defense.build(classes=10, shape=(1, 8, 8), seed=0)
        fit(model, config.load_data(), config.defense, out=folder / name, config=config)
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """The two runs, to write into."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


@pytest.fixture
def tiny_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the quick level so quick that it says little."""
    less = {"eot": (1, 2), "steps": (1, 2), "apgd_steps": 2, "square_queries": 4, "nes_queries": 30}
    less |= {"max_weight_samples": 20, "comparison_samples": 20, "ensembles": 1}
    monkeypatch.setitem(LEVELS, "quick", replace(LEVELS["quick"], **less))


@pytest.fixture
def advbnn() -> Callable[..., Any]:
    """Runs a command with the given arguments and checks its exit status; returns its output in one line."""

    def invoke(*arguments: object, status: int = 0) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == status, result.output
        assert "Traceback" not in result.output
        return " ".join(result.output.replace("\u2502", " ").split())

    return invoke
