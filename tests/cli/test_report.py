"""advbnn report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import made_up_records as made_up
from advbnn.cli.app import app
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.identity import ModelIdentity
from advbnn.evaluation.records import Record, Records
from advbnn.training.config import Config
from advbnn.training.loop import fit
from elements import Elements

CLEAN, ATTACKED = made_up.record("adv", 0.93), made_up.attacked("adv", 0.035)


def report(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with records of an attack."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    table = {"data": "digits", "defense": "adv_bnn", "architecture": "mlp", "attack": {"steps": 1}}
    config = Config.from_table(table | {"schedule": {"kind": "constant", "epochs": 1}})
    splits = config.load_data()
    net = config.defense.build(classes=10, shape=(1, 8, 8))
    model = fit(net, splits, config.defense, out=folder, config=config).model
    attacks = {"clean": None, "pgd": config.defense.attack}
    test = splits.test.subset(range(100))
    evaluate(model, test, attacks, samples=2, seeds=1, label="mine", out=folder / "records.json")
    return folder


def test_the_report_of_a_run_shows_its_images(run: Path, tmp_path: Path) -> None:
    shown = report(run, "--out", tmp_path / "report", "--images", 2, "--device", "cpu")
    assert shown.exit_code == 0, shown.output
    elements = Elements((tmp_path / "report" / "report.html").read_text())
    assert len(elements.of("img")) == 6
    assert "PGD-20, 10 EOT samples" in elements.text and "Adv-BNN (mine) on digits" in elements.text


def test_records_without_their_run_have_no_images(run: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "records.json").write_bytes((run / "records.json").read_bytes())
    shown = report(tmp_path / "copy", "--out", tmp_path / "report", "--images", 2)
    assert shown.exit_code == 0, shown.output


def test_runs_and_files_are_combined_unless_they_contradict(run: Path, tmp_path: Path) -> None:
    file, other, file_of_two = (tmp_path / f"{name}.json" for name in ("records", "other", "two"))
    records = Records.load(run / "records.json")
    records.where(kind="clean").save(file)
    assert report(run, file, "--out", tmp_path, "--images", 0).exit_code == 0
    Records(replace(r, samples=3) for r in records).save(other)
    failed = report(run, other, "--out", tmp_path / "out")
    assert failed.exit_code == 1 and "other.json" in failed.output
    Records(replace(r, seeds=(0, 1), correct=r.correct * 2, outcomes=r.outcomes * 2) for r in records).save(file_of_two)
    failed = report(run, file_of_two, "--out", tmp_path / "out")
    words = " ".join(failed.output.split())
    assert failed.exit_code == 1 and "seeds was [0] and is now [0, 1]" in words
    assert "leave one of the two out" in words and "--out" not in words


def a_run(folder: Path, defense: str, **files: Records) -> Path:
    """A folder that looks like a run, with files of records."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'defense = "{defense}"')
    (folder / "run.json").write_text("{}")
    for name, records in files.items():
        records.save(folder / f"{name}.json")
    return folder


def of_network(found: Record, sha256: str, **fields: Any) -> Records:
    """A record with the label run3 of a network with this digest."""
    return Records([replace(found, model=ModelIdentity(label="run3", kind="Sequential", sha256=sha256), **fields)])


def test_two_networks_with_one_label_are_refused(tmp_path: Path) -> None:
    one = a_run(tmp_path / "x" / "run3", "adv", records=of_network(CLEAN, "a" * 64))
    other = a_run(tmp_path / "y" / "run3", "bnn", pgd=of_network(ATTACKED, "b" * 64)) / "pgd.json"
    failed = report(one, other, "--out", tmp_path / "out", "--images", 0)
    assert failed.exit_code == 1
    for part in ("'run3'", str(one), str(other), "aaaaaaaa", "bbbbbbbb", "rename"):
        assert part in failed.output.replace("\n", " ")


@pytest.mark.parametrize(
    "how",
    [
        {"sha256": "a" * 64},
        {"sha256": "b" * 64, "precision": "float64"},
        {"sha256": "b" * 64, "versions": CLEAN.versions | {"torch": "2.11.0+cu130"}},
    ],
)
def test_records_that_may_be_of_one_network_are_combined(tmp_path: Path, how: dict[str, Any]) -> None:
    one = a_run(tmp_path / "x" / "run3", "adv", records=of_network(CLEAN, "a" * 64))
    of_network(ATTACKED, **how).save(tmp_path / "more.json")
    made = report(one, tmp_path / "more.json", "--out", tmp_path / "out", "--images", 0)
    assert made.exit_code == 0, made.output
    assert "| Adv. training (run3) |" in (tmp_path / "out" / "report.md").read_text()


def test_files_of_one_reproduction_are_combined(tmp_path: Path) -> None:
    files = [tmp_path / "records" / f"{name}.json" for name in ("one", "other")]
    for at, path in enumerate(files):
        of_network(CLEAN, str(at) * 64, curve="alpha", at=float(at)).save(path)
    assert report(*files, "--out", tmp_path / "out").exit_code == 1
    (tmp_path / "reproduction.json").write_text("{}")
    assert report(*files, "--out", tmp_path / "out").exit_code == 0


def test_mistakes_are_one_line(run: Path, tmp_path: Path) -> None:
    made_up.clean().save(tmp_path / "other.json")
    a_run(tmp_path / "bare", "adv")
    (tmp_path / "text.json").write_text("text")
    mistakes = {
        (tmp_path,): "neither a run folder nor",
        (tmp_path / "missing",): "does not exist",
        (tmp_path / "bare",): "advbnn evaluate",
        (tmp_path / "text.json",): "text.json",
        (run, tmp_path / "other.json"): "different data",
    }
    for arguments, message in mistakes.items():
        failed = report(*arguments, "--out", tmp_path / "out")
        assert failed.exit_code == 1 and failed.output.startswith("error: ") and message in failed.output
    assert not (tmp_path / "out").exists()
