"""The commands report and tables."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import made_up_records as made_up
from advbnn.cli.report import report
from advbnn.cli.tables import tables
from advbnn.data import ImageSet
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.identity import ModelIdentity
from advbnn.evaluation.records import Record, Records
from advbnn.training.config import Config
from advbnn.training.loop import fit
from elements import Elements


def advbnn(*arguments: object) -> Any:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(report)
    app.command()(tables)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with records of an attack."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    table = {
        "data": "digits",
        "defense": "adv_bnn",
        "architecture": "mlp",
        "schedule": {"kind": "constant", "epochs": 1},
    }
    config = Config.from_table(table | {"attack": {"steps": 1}})
    splits = config.load_data()
    model = fit(
        config.defense.build(classes=10, shape=(1, 8, 8)), splits, config.defense, out=folder, config=config
    ).model
    test: ImageSet = splits.test.subset(range(100))
    attack = config.defense.attack
    evaluate(model, test, {"clean": None, "pgd": attack}, samples=2, seeds=1, label="mine", out=folder / "records.json")
    return folder


def test_report_of_a_run_shows_its_images(run: Path, tmp_path: Path) -> None:
    shown = advbnn("report", run, "--out", tmp_path / "report", "--images", 2, "--device", "cpu")
    assert shown.exit_code == 0, shown.output
    assert shown.output.strip() == f"{tmp_path / 'report' / 'report.html'}: 2 records"
    elements = Elements((tmp_path / "report" / "report.html").read_text())
    assert len(elements.of("img")) == 6
    assert "PGD-20 averaged over 10 draws" in elements.text
    assert "Robustness of Adv-BNN (mine) on digits" in elements.text
    assert "| Adv-BNN (mine) |" in (tmp_path / "report" / "report.md").read_text()


def test_report_of_files_and_runs_together(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    Records(r for r in Records.load(run / "records.json") if r.kind == "clean").save(file)
    assert advbnn("report", run, file, "--out", tmp_path, "--images", 0).exit_code == 0
    assert not Elements((tmp_path / "report.html").read_text()).of("img")


def test_records_that_contradict_each_other_name_their_source(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    Records(replace(r, samples=3) for r in Records.load(run / "records.json")).save(other)
    failed = advbnn("report", run, other, "--out", tmp_path / "out")
    assert failed.exit_code == 1
    assert f"{other} does not go together with what was named before it: two records 'clean' of mine" in failed.output
    assert "samples was 2 and is now 3. Leave one of them out" in failed.output


def a_run(folder: Path, defense: str, **files: Records) -> Path:
    """A folder that says what it holds, with files of records."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'defense = "{defense}"')
    (folder / "run.json").write_text("{}")
    for name, records in files.items():
        records.save(folder / f"{name}.json")
    return folder


def of_network(found: Record, sha256: str, **fields: Any) -> Records:
    """A record as one of another network of the label run3."""
    return Records([replace(found, model=ModelIdentity(label="run3", kind="Sequential", sha256=sha256), **fields)])


CLEAN, ATTACKED = made_up.record("adv", 0.93), made_up.attacked("adv", 0.035)


def test_two_networks_of_one_name_are_refused(tmp_path: Path) -> None:
    one = a_run(tmp_path / "x" / "run3", "adv", records=of_network(CLEAN, "a" * 64))
    other = a_run(tmp_path / "y" / "run3", "bnn", pgd=of_network(ATTACKED, "b" * 64)) / "pgd.json"
    failed = advbnn("report", one, other, "--out", tmp_path / "out", "--images", 0)
    assert (failed.exit_code, failed.output) == (
        1,
        f"error: 'run3' stands for two networks in {one} and {other} (sha256 aaaaaaaa and bbbbbbbb); "
        "rename the folder of one of them and evaluate it again, or leave it out\n",
    )
    trained_anew = of_network(CLEAN, "a" * 64) + of_network(ATTACKED, "b" * 64)
    both = a_run(tmp_path / "z" / "run3", "adv", records=trained_anew)
    assert f"two networks in {both} (sha256" in advbnn("report", both, "--out", tmp_path / "out").output


@pytest.mark.parametrize(
    "how",
    [
        {"sha256": "a" * 64},
        {"sha256": "b" * 64, "precision": "float64"},
        {"sha256": "b" * 64, "versions": CLEAN.versions | {"torch": "2.11.0+cu130"}},
        {"sha256": "a" * 64, "kind": "transfer", "source": ModelIdentity(label="run3", kind="x", sha256="b" * 64)},
    ],
)
def test_records_that_may_be_of_one_network_stand_together(tmp_path: Path, how: dict[str, Any]) -> None:
    one = a_run(tmp_path / "x" / "run3", "adv", records=of_network(CLEAN, "a" * 64))
    of_network(ATTACKED, **how).save(tmp_path / "more.json")
    made = advbnn("report", one, tmp_path / "more.json", "--out", tmp_path / "out", "--images", 0)
    assert made.exit_code == 0, made.output


def test_files_of_one_reproduction_stand_together(tmp_path: Path) -> None:
    files = [tmp_path / "records" / f"{name}.json" for name in ("one", "other")]
    for at, path in enumerate(files):
        of_network(CLEAN, str(at) * 64, curve="alpha", at=float(at)).save(path)
    assert advbnn("report", *files, "--out", tmp_path / "out").exit_code == 1
    (tmp_path / "reproduction.json").write_text("{}")
    assert advbnn("report", *files, "--out", tmp_path / "out").exit_code == 0


def test_a_folder_names_the_defence_of_its_own_records_only(tmp_path: Path) -> None:
    one = a_run(tmp_path / "x" / "run3", "adv", records=of_network(CLEAN, "a" * 64))
    other = a_run(tmp_path / "y" / "run3", "bnn", rse=Records([made_up.record("rse", 0.5)])) / "rse.json"
    assert advbnn("report", one, other, "--out", tmp_path / "out", "--images", 0).exit_code == 0
    assert "| Adv. training (run3) |" in (tmp_path / "out" / "report.md").read_text()


def test_mistakes_are_said_in_one_line(run: Path, tmp_path: Path) -> None:
    made_up.clean().save(tmp_path / "other.json")
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.toml").write_text("")
    (tmp_path / "empty.json").write_text('{"schema": 2, "records": []}')
    (tmp_path / "text.json").write_text("text")
    mistakes = {
        (tmp_path,): "is neither a run folder nor a file of records; expected the folder of a run",
        (tmp_path / "missing",): "does not exist",
        (bare,): "is a run without records; `advbnn evaluate",
        (tmp_path / "text.json",): "is not a file of records",
        (tmp_path / "empty.json",): "records is empty",
        (run, tmp_path / "other.json"): "records of different data cannot stand on one plot",
        (run, "--images", -1): "images must be a number of images, 0 or more, got -1",
    }
    for arguments, message in mistakes.items():
        failed = advbnn("report", *arguments, "--out", tmp_path / "out")
        assert failed.exit_code == 1
        assert failed.output.startswith("error: ")
        assert message in failed.output
        assert failed.output.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert advbnn("report").exit_code == 2


def test_tables_are_refreshed_and_checked(tmp_path: Path) -> None:
    made_up.clean().save(tmp_path / "results" / "digits.json")
    document = tmp_path / "README.md"
    document.write_text("<!-- table: digits/headline -->\n<!-- end -->\n")
    arguments = ["tables", document, "--results", tmp_path / "results"]
    stale = advbnn(*arguments, "--check")
    assert (stale.exit_code, stale.output) == (1, f"{document}: out of date; run advbnn tables\n")
    assert advbnn(*arguments).output == f"{document}: refreshed\n"
    assert "| Adv-BNN | - | 90.6 [87.2, 93.4] |" in document.read_text()
    fresh = advbnn(*arguments, "--check")
    assert (fresh.exit_code, fresh.output) == (0, f"{document}: up to date\n")
    (tmp_path / "image.png").write_bytes(b"\xff\xfe")
    assert f"error: {tmp_path / 'image.png'} is no text" in advbnn("tables", tmp_path / "image.png").output
    missing = advbnn("tables", tmp_path / "missing.md")
    assert (missing.exit_code, missing.output) == (1, f"error: there is no such file: {tmp_path / 'missing.md'}\n")


@pytest.mark.parametrize("text", ["no table\n", "<!--table: digits/headline-->\n<!-- end -->\n", ""])
def test_a_document_without_a_marked_table_is_refused(tmp_path: Path, text: str) -> None:
    document = tmp_path / "README.md"
    document.write_text(text)
    for further in ([], ["--check"]):
        refused = advbnn("tables", document, "--results", tmp_path, *further)
        assert refused.exit_code == 1
        assert f"error: {document} has no table to fill" in refused.output
        assert "<!-- table: RECORDS/NAME -->" in refused.output
