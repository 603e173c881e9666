"""advbnn reproduce: one small reproduction from beginning to end, with a run trained beforehand."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from advbnn.cli.app import app
from advbnn.machine.files import locked_folder
from advbnn.paper import Experiment
from advbnn.paper.experiment import RECORDS, RUNS, WEIGHTS
from advbnn.training.loop import fit_config
from advbnn.training.run_folder import MODEL

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

SETTINGS = ["schedule.epochs=1", "batch_size=256"]
OPTIONS = ["--data", "digits", "--limit", "100", "--audit", "none", "--jobs", "1", "--defenses", "none,bnn"]
OPTIONS += [*(part for setting in SETTINGS for part in ("--set", setting))]


def reproduce(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, str]:
    """A reproduction with one network that was trained by other means."""
    out = tmp_path_factory.mktemp("reproduced")
    config = Experiment.choose("digits", settings=SETTINGS).run("none").config
    fit_config(config, config.load_data(), out=out / RUNS / "none", resume=False, device="cpu")
    code, output = reproduce("table1", *OPTIONS, "--out", str(out))
    assert code == 0, output
    return out, output


def test_the_plan_and_an_estimate_come_first_and_a_run_that_exists_is_not_trained_again(made) -> None:
    _, output = made
    assert re.search(r"training bnn +about \d", output)
    assert re.search(r"radius-none +about \d", output)
    assert "Estimated time: " in output
    assert "training none" not in output
    assert "done:   training bnn" in output
    assert re.search(r"\(1 of \d+ done, about \d+ s left\)", output)


def test_it_ends_with_the_table_and_the_path_of_the_report(made) -> None:
    out, output = made
    assert re.search(r"BNN +PGD-20 +\d", output)
    assert "PGD-20, 5 EOT samples" in output
    assert str(out / "report" / "report.html") in output.replace("\n", "")
    assert (out / "report" / "report.html").exists()
    assert [path.name for path in (out / "figures").iterdir()] == ["fig2.png"]
    assert "schedule.epochs=1" in (out / "results.md").read_text()
    records = json.loads((out / RECORDS / "radius-bnn.json").read_text())["records"]
    assert len(records) == 5
    assert all(record["command"].startswith("advbnn") and record["data"]["n"] == 100 for record in records)


def test_a_second_start_only_renders(made) -> None:
    out, _ = made
    weights = (out / RUNS / "bnn" / MODEL).stat().st_mtime_ns
    (out / "results.md").unlink()
    code, output = reproduce("table1", *OPTIONS, "--out", str(out))
    assert (code, "done:" in output, (out / "results.md").exists()) == (0, False, True)
    assert (out / RUNS / "bnn" / MODEL).stat().st_mtime_ns == weights


def test_weights_of_unknown_origin_are_checked_once(made) -> None:
    """That the records hold for them is remembered."""
    out, _ = made
    (out / WEIGHTS).unlink()
    outputs = [reproduce("table1", *OPTIONS, "--out", str(out), "--no-estimate")[1] for _ in range(2)]
    assert ["done:   radius-none" in output for output in outputs] == [True, False]


def test_a_dry_run_touches_nothing(tmp_path) -> None:
    code, output = reproduce("all", *OPTIONS, "--out", str(tmp_path / "new"), "--dry-run", "--no-estimate")
    assert code == 0 and not (tmp_path / "new").exists()
    assert "training none" in output and "left out: fig4" in output and "about" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig7", "--data", "digits"], "fig7"),
        (["table1", "--data", "digits", "--engine", "warp"], "engine"),
        (["table1", "--data", "digits", "--defenses", ""], "'adv_bnn'"),
        (["table1", "--data", "digits", "--beside", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_clear_line(tmp_path, arguments: list[str], message: str) -> None:
    code, output = reproduce(*arguments, "--out", str(tmp_path / "out"), "--no-estimate", "--dry-run")
    assert code == 1 and re.search(rf"^error:.*{message}", output, re.MULTILINE | re.DOTALL)


def test_its_folder_cannot_be_the_source_of_another_report(made) -> None:
    result = CliRunner().invoke(app, ["report", str(made[0])])
    assert (result.exit_code, "advbnn reproduce" in result.output) == (1, True)


def test_a_second_command_is_refused(made) -> None:
    with locked_folder(made[0]):
        code, output = reproduce("table1", *OPTIONS, "--out", str(made[0]))
    assert (code, "is in use by process" in output) == (1, True)


def test_defences_of_another_reproduction_are_included_and_remembered(made, tmp_path) -> None:
    out, _ = made
    fewer = [*OPTIONS[:-6], "--defenses", "rse", *OPTIONS[-4:], "--no-estimate", "--out", str(tmp_path)]
    code, first = reproduce("table1", *fewer, "--beside", str(out))
    assert code == 0, first
    _, second = reproduce("table1", *fewer)
    for output in (first, second):
        assert re.search(r"RSE +PGD-20 +\d", output)
        assert re.search(r"BNN +PGD-20 +\d", output)
    assert out.name in (tmp_path / "results.md").read_text()
