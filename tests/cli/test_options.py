"""Impossible options are refused before anything is loaded: the runs named here do not exist."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from advbnn.cli import options

Command = Callable[..., str]


def test_numbers_are_decimal_or_fractions() -> None:
    for text, value in {"0.031": 0.031, "8/255": 8 / 255, "0": 0.0, "1e-3": 1e-3, "inf": float("inf")}.items():
        assert options.number(text) == value
    for text in ("8/0", "abc", "-0.1", "-1/2", "nan", "", "/255"):
        with pytest.raises(typer.BadParameter, match="8/255"):
            options.number(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "RUN", "--eps", "8/0"], "'--eps': '8/0' is not a number"),
        (["evaluate", "RUN", "--attack", "pdg"], "'--attack': .*did you mean 'pgd'?"),
        (["audit", "RUN", "--level", "fast"], "'--level': .*'fast' is unknown"),
        (["curve", "RUN", "step"], "'over': .*did you mean 'steps'?"),
        (["curve", "RUN", "steps", "--at", "2.5"], "2.5.* whole number from 1"),
        (["curve", "RUN", "eot", "--attack", "clean"], "needs an attack, got 'clean'"),
        (["evaluate", "RUN", "--attack", "paper", "--norm", "l2"], "'paper' .*'linf', got 'l2'; use 'pgd'"),
        (["evaluate", "RUN", "--attack", "cw", "--norm", "l1"], "got 'l1'"),
        (["evaluate", "RUN", "--attack", "mean", "--steps", "0"], "'--steps': .*0.* whole number from 1"),
        (["evaluate", "RUN", "--attack", "pgd", "--eot", "0"], "'--eot': .*0.* whole number from 1"),
        (["evaluate", "RUN", "--attack", "paper", "--eot", "20"], "use --attack pgd"),
        (["evaluate", "RUN", "--attack", "square", "--steps", "5"], "'--steps': 5 would change nothing: square"),
        (["evaluate", "RUN", "--eps", "8"], "8/255"),
        (["evaluate", "RUN", "--attack", "clean", "--eps", "0.1"], "'--eps': .*'clean'.*--attack"),
        (["curve", "RUN", "radius", "--eps", "0.1"], "'--eps': .*--at"),
        (["curve", "RUN", "radius", "--at", "8"], "'--at': .*8/255"),
        (["transfer", "A", "B", "--out", "x.json", "--eps", "1", "--attack", "clean"], "'--attack': .*'clean' is"),
        (["transfer", "A", "B", "--out", "x.json", "--eps", "1", "--attack", "mean"], "use advbnn evaluate RUN"),
    ],
)
def test_mistakes_are_found_before_the_run_is_loaded(arguments: list[str], message: str, advbnn: Command) -> None:
    assert re.search(message, advbnn(*arguments, status=2))


def test_possible_options_pass(advbnn: Command) -> None:
    for command in (
        "evaluate RUN --attack mean --norm l2 --eps 8",
        "evaluate RUN --attack fgsm --attack pgd --steps 5 --eps inf --eps 1",
        "curve RUN radius --at 4/255",
    ):
        assert "RUN is not a run folder" in advbnn(*command.split(), status=1)


TO_A_FILE = [["evaluate", "RUN"], ["audit", "RUN"], ["curve", "RUN", "radius"], ["transfer", "A", "B", "--eps", "0.1"]]
TO_A_FOLDER = [["train", "CONFIG"], ["report", "RUN"], ["reproduce", "table1", "--data", "digits", "--no-estimate"]]


@pytest.mark.parametrize("command", TO_A_FILE + TO_A_FOLDER, ids=lambda command: command[0])
def test_an_unwritable_place_is_refused_before_anything_is_loaded(
    command: list[str], tmp_path: Path, advbnn: Command
) -> None:
    (tmp_path / "file").touch()
    assert "give --out" in advbnn(*command, "--out", tmp_path / "file" / "within", status=2)


def test_a_file_of_points_that_cannot_be_written_is_refused_by_its_own_name(tmp_path: Path, advbnn: Command) -> None:
    assert "give --save-points a file" in advbnn("audit", "RUN", "--save-points", tmp_path, status=2)


def test_unwritable_places(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.touch()
    folder.mkdir()
    for check in (options.file_to_write, options.folder_to_write):
        for place, message in (
            (file / "within", "Not a directory"),
            (Path("/proc/nowhere/within"), "cannot be written .in /proc"),
            (tmp_path / ("n" * 300), "name too long"),
            (folder, "is a folder") if check is options.file_to_write else (file, "is a file"),
        ):
            with pytest.raises(typer.BadParameter, match=f"{message}.*give --out"):
                check(place)
    assert sorted(tmp_path.iterdir()) == [file, folder] and not any(folder.iterdir())
    assert options.file_to_write(Path("/proc/version")) == Path("/proc/version")  # existing records may be complete


def test_devices_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="/dev/null .*--out"):
        options.file_to_write(Path("/dev/null"))


def test_an_unwritable_default_place_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advbnn: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, command in zip(("runs", "report", "reproduced"), TO_A_FOLDER, strict=True):
        (tmp_path / name).touch()
        assert "give --out" in advbnn(*command, status=2)


def test_absurd_numbers_are_refused_with_a_bound(advbnn: Command) -> None:
    for option in ("steps", "eot", "samples", "seeds", "limit", "batch-size"):
        for value in (10**22, -1, "1e9", "inf"):
            shown = advbnn("evaluate", "RUN", f"--{option}={value}", status=2)
            assert f"'--{option}'" in shown and "1,000,000" in shown
    for value in ("inf", "1e400", "1e22", "nan"):
        assert "'--at'" in advbnn("curve", "RUN", "steps", "--at", value, status=2)
    assert "'--eps'" in advbnn("evaluate", "RUN", "--eps", "1e308", status=2)
