"""The command line: every subcommand is there, explains itself at once, and turns errors into one clear line."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import advbnn
from advbnn.cli.app import app

runner = CliRunner()


@pytest.mark.parametrize(
    "command",
    ["reproduce", "train", "evaluate", "audit", "curve", "transfer", "predict", "report", "tables", "data download"],
)
def test_every_command_explains_itself(command: str) -> None:
    result = runner.invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["audit", "--help"], 0), (["trian"], 2)])
def test_help_does_not_wait_for_torch(arguments: list[str], status: int) -> None:
    code = """
import sys
from advbnn.cli.app import app
try:
    app(sys.argv[1:])
except SystemExit as ended:
    sys.exit("torch was imported" if "torch" in sys.modules else ended.code)
"""
    ended = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert ended.returncode == status, ended.stderr
    assert "Usage" in ended.stdout + ended.stderr


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).output.strip() == f"advbnn {advbnn.__version__}"


def test_a_config_that_is_missing_is_one_line(tmp_path) -> None:
    result = runner.invoke(app, ["train", str(tmp_path / "nothing.toml")])
    assert result.exit_code == 1
    assert "nothing.toml does not exist" in result.output
    assert "Traceback" not in result.output


def test_a_file_is_no_place_for_a_dataset(tmp_path) -> None:
    (tmp_path / "file").touch()
    result = runner.invoke(app, ["data", "download", "cifar10", "--root", str(tmp_path / "file")])
    assert result.exit_code == 1
    assert "is a file; give --root a folder" in result.output


def test_an_unknown_dataset_is_refused_with_what_there_is(tmp_path) -> None:
    result = runner.invoke(app, ["data", "download", "cifar1O", "--root", str(tmp_path)])
    assert result.exit_code == 1
    assert "cifar10" in result.output
