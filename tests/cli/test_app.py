"""Every command explains itself at once, and errors are one clear line."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import advbnn
from advbnn.cli.app import app

runner = CliRunner()


COMMANDS = [[command.callback.__name__] for command in app.registered_commands] + [["data", "download"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0 and "Usage" in result.output


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["audit", "--help"], 0), (["trian"], 2)])
def test_help_does_not_wait_for_torch(arguments: list[str], status: int) -> None:
    code = """
import sys
from advbnn.cli.app import app
try:
    app(sys.argv[1:])
except SystemExit as ended:
    sys.exit("torch or Dask was imported" if {"torch", "distributed"} & sys.modules.keys() else ended.code)
"""
    ended = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert ended.returncode == status, ended.stderr
    assert "Usage" in ended.stdout or "did you mean 'train'" in ended.stderr.lower()


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).output.strip() == f"advbnn {advbnn.__version__}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nothing.toml"], "nothing.toml does not exist"),
        (["train", "adv.toml"], "nowhere: there is no such folder"),
        (["train", "adv.toml", "--set", "sed=1"], "did you mean 'seed'"),
        (["train", "cut.toml"], "cut.toml: "),
        (["train", "wrong.toml"], "wrong.toml: key='defnse'"),
        (["data", "download", "cifar1O", "--root", "."], "did you mean 'cifar10'?"),
        (["data", "download", "cifar10", "--root", "file"], "file cannot be created"),
        (["predict", "file", "file"], "not a run folder"),
        (["predict", "file", "nothing.png"], "no such file or folder: nothing.png"),
        (["predict", "file", "."], "is a folder without images"),
        (["evaluate", "."], "not a run folder"),
        (["evaluate", ".", "--device", "tpu"], "--device='tpu' is not usable: torch finds cpu"),
        (["evaluate", ".", "--device", "meta"], "--device='meta' is not usable: torch finds cpu"),
        (["evaluate", ".", "--device", "cuda:99"], "--device='cuda:99' is not usable: torch finds cpu"),
    ],
)
def test_errors_are_one_line(arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "cut.toml").write_text('defense = "adv')
    (tmp_path / "wrong.toml").write_text('defnse = "adv"')
    (tmp_path / "adv.toml").write_text('defense = "adv"\ndata = "cifar10"\nroot = "nowhere"')
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("error: ") and words in line


def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("advbnn.data.fetch", bug)
    result = runner.invoke(app, ["data", "download", "cifar10", "--root", "."])
    assert isinstance(result.exception, ValueError)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "Did you mean 'train'"),
        (["evaluate"], "run folder"),
        (["evaluate", "RUN", "--stesp", "3"], "--steps"),
        (["evaluate", "RUN", "--eps", "8/0"], "'--eps'"),
        (["audit", "RUN", "--eps", "0.1", "0.2"], "repeat --eps"),
        (["audit", "RUN", "OTHER"], "(OTHER) (see"),
    ],
)
def test_wrong_usage_is_one_line_too(arguments: list[str], words: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("error: ") and words in line and "--help" in line


def test_no_arguments_show_the_help() -> None:
    assert "Usage" in runner.invoke(app, []).output


def test_help_shows_flags_as_flags() -> None:
    for command in ("train", "evaluate", "audit", "reproduce", "tables"):
        assert "<bool>" not in runner.invoke(app, [command, "--help"]).output
    assert "--overwrite" in runner.invoke(app, ["evaluate", "--help"]).output
