from pathlib import Path

from typer.testing import CliRunner

from advbnn.cli.app import app
from advbnn.training.config import load_config
from advbnn.training.loading import load_trained


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_a_run_is_trained_found_finished_and_refused_with_other_settings(tmp_path: Path) -> None:
    path = write(tmp_path, 'data = "digits"\ndefense = "bnn"\narchitecture = "mlp"\n')
    runner, out = CliRunner(), str(tmp_path / "out")
    quick = ["--out", out, "--set", "schedule.epochs=1", "--set", "batch_size=500", "--device", "cpu"]
    first = runner.invoke(app, ["train", str(path), *quick])
    assert first.exit_code == 0 and "finished after 3 steps" in first.output
    again = runner.invoke(app, ["train", str(path), *quick])
    assert again.exit_code == 0 and "is finished" in again.output
    other = runner.invoke(app, ["train", str(path), *quick, "--set", "seed=1"])
    assert other.exit_code == 1 and "error:" in other.output and "seed = 0 there, 1 now" in other.output
    assert load_trained(out).config == load_config(path, ["schedule.epochs=1", "batch_size=500"])


def test_errors_are_one_line(tmp_path: Path) -> None:
    for text, message in (
        ('defense = "adv"\ndata = "cifar10"\nroot = "nowhere"', "nowhere"),
        ('defense = "adv"\nsed = 1', "did you mean 'seed'"),
    ):
        failed = CliRunner().invoke(app, ["train", str(write(tmp_path, text)), "--device", "cpu"])
        assert failed.exit_code == 1 and message in failed.output and failed.output.count("\n") == 1
        assert isinstance(failed.exception, SystemExit)
