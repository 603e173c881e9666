"""Options: what is meant is understood, and what cannot be is refused before anything is loaded."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from advbnn.attacks import threat
from advbnn.cli import options
from advbnn.cli.app import app
from advbnn.evaluation.audit import attack_suite
from advbnn.fast import compiling


def advbnn(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def sentence(output: str) -> str:
    """What stands in the box of an error, in one line."""
    return " ".join(output.replace("\u2502", " ").split())


@pytest.mark.parametrize(
    ("text", "value"), [("0.031", 0.031), ("8/255", 8 / 255), ("0", 0.0), ("1e-3", 1e-3), ("inf", float("inf"))]
)
def test_numbers_are_decimal_or_fractions(text: str, value: float) -> None:
    assert options.number(text) == value


@pytest.mark.parametrize("text", ["8/0", "abc", "-0.1", "-1/2", "nan", "", "8/", "/255", "1/2/3"])
def test_what_is_no_number_of_0_or_more_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a number of 0 or more, such as 0.031 or 8/255"):
        options.number(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "RUN", "--eps", "8/0"], "'--eps': '8/0' is not a number of 0 or more"),
        (["evaluate", "RUN", "--attack", "pdg"], "'--attack': name='pdg' is unknown: .* did you mean 'pgd'?"),
        (["evaluate", "RUN", "--norm", "l3"], "'--norm': name='l3' is unknown"),
        (["evaluate", "RUN", "--engine", "warp"], "'--engine': name='warp' is unknown"),
        (["evaluate", "RUN", "--precision", "half"], "'--precision': name='half' is unknown"),
        (["audit", "RUN", "--level", "fast"], "'--level': name='fast' is unknown"),
        (["audit", "RUN", "--eps", "abc"], "'--eps': 'abc' is not"),
        (["curve", "RUN", "step"], "'over': name='step' is unknown: .* did you mean 'steps'?"),
        (["curve", "RUN", "steps", "--at", "2.5"], "a curve over steps takes whole numbers, got 2.5"),
        (["curve", "RUN", "eot", "--attack", "clean"], "a curve over eot needs an attack, got 'clean'"),
        (["evaluate", "RUN", "--norm", "l2"], "attack 'paper' is for norm 'linf', got 'l2'; use 'pgd'"),
        (["evaluate", "RUN", "--attack", "cw", "--norm", "l1"], "'l2' or 'linf', got 'l1'"),
        (["evaluate", "RUN", "--attack", "mean", "--steps", "0"], "steps must be .* got 0"),
        (["evaluate", "RUN", "--attack", "pgd", "--eot", "0"], "eot must be .* got 0"),
        (["curve", "RUN", "radius", "--norm", "l2"], "attack 'paper' is for norm 'linf', got 'l2'"),
        (["transfer", "A", "B", "--out", "x.json", "--eps", "1", "--norm", "l1"], "attack 'paper' is for norm 'linf'"),
        (["transfer", "A", "B", "--out", "x.json", "--eps", "-1"], "'--eps': '-1' is not"),
        (["transfer", "A", "B", "--out", "x.json", "--eps", "1", "--attack", "clean"], "'--attack': name='clean' is"),
    ],
)
def test_mistakes_are_found_before_the_run_is_looked_for(arguments: list[str], message: str) -> None:
    """The runs that are named here do not exist, and nothing is said of that."""
    refused = advbnn(*arguments)
    assert refused.exit_code == 2
    assert re.search(message, sentence(refused.output))


def test_what_any_norm_can_be_measured_in_gets_as_far_as_the_run() -> None:
    for arguments in (["--attack", "clean"], ["--attack", "pgd"], ["--attack", "mean"], ["--attack", "square"]):
        assert "RUN is not a run folder" in advbnn("evaluate", "RUN", "--norm", "l2", *arguments).output


def test_a_fraction_gets_as_far_as_the_run() -> None:
    for arguments in (["evaluate", "RUN"], ["audit", "RUN"], ["curve", "RUN", "radius", "--at", "4/255"]):
        assert "RUN is not a run folder" in advbnn(*arguments, "--eps", "8/255").output


def test_names_are_those_of_the_library() -> None:
    assert set(options.NORMS) == set(threat.NORMS)
    assert set(options.LEVELS) == set(attack_suite.LEVELS)
    assert set(options.ENGINES) == set(compiling.ENGINES)
    assert set(options.PRECISIONS) == set(compiling.PRECISIONS)


@pytest.mark.parametrize(("norm", "radius"), [("linf", 1.0), ("linf", float("inf")), ("l2", 8.0)])
def test_radii_that_may_be_meant_are_taken(norm: str, radius: float) -> None:
    options.refuse_larger_than_images(norm, [radius])


@pytest.mark.parametrize(
    "command",
    [["evaluate", "a"], ["audit", "a"], ["curve", "a", "radius"], ["transfer", "a", "b", "--out", "c"]],
    ids=lambda c: c[0],
)
def test_a_radius_beyond_all_pixels_is_questioned_before_anything_is_loaded(command: list[str]) -> None:
    result = advbnn(*command, "--eps", "8")
    assert result.exit_code == 2
    assert "do you mean 8/255?" in sentence(result.output)


def test_steps_that_no_attack_would_take_are_refused() -> None:
    for names in (["fgsm"], ["square", "nes"]):
        result = advbnn("evaluate", "a", "--steps", "5", *(part for name in names for part in ("--attack", name)))
        assert result.exit_code == 2
        assert f"--steps 5 would change nothing: {' and '.join(names)} " in sentence(result.output)
    some = advbnn("evaluate", "a", "--steps", "5", "--attack", "fgsm", "--attack", "pgd")
    assert "a is not a run folder" in some.output


def test_draws_that_no_attack_would_average_are_refused() -> None:
    result = advbnn("evaluate", "a", "--eot", "20")
    assert result.exit_code == 2
    assert "use --attack pgd" in sentence(result.output)


TO_A_FILE = {
    "evaluate": ["evaluate", "RUN"],
    "audit": ["audit", "RUN"],
    "curve": ["curve", "RUN", "radius"],
    "transfer": ["transfer", "A", "B", "--eps", "0.1"],
}
TO_A_FOLDER = {
    "train": ["train", "CONFIG"],
    "report": ["report", "RUN"],
    "reproduce": ["reproduce", "table1", "--data", "digits", "--no-estimate"],
}


@pytest.mark.parametrize("command", [*TO_A_FILE, *TO_A_FOLDER])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_loaded(command: str, tmp_path: Path) -> None:
    """What else is named here does not exist, and nothing is said of that."""
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("")
    folder.mkdir()
    wrong = folder if command in TO_A_FILE else file
    expected = {
        wrong: "is a folder; give --out a file, such as" if wrong == folder else "is a file; give --out a folder",
        file / "within": f"{file.name} is a file",
        Path("/proc/nowhere/within"): "nothing can be written in",
        tmp_path / ("n" * 300): "name too long",
    }
    for place, message in expected.items():
        refused = advbnn(*(TO_A_FILE | TO_A_FOLDER)[command], "--out", str(place))
        assert refused.exit_code == 2
        assert message.replace(" ", "") in "".join(sentence(refused.output).split())
        assert "give--out" in "".join(sentence(refused.output).split())
    assert sorted(tmp_path.iterdir()) == [file, folder] and not any(folder.iterdir())


def test_a_default_place_that_cannot_be_written_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, command in (("runs", "train"), ("report", "report"), ("reproduced", "reproduce")):
        (tmp_path / name).write_text("")
        refused = advbnn(*TO_A_FOLDER[command])
        assert refused.exit_code == 2
        assert "is a file" in sentence(refused.output) and "give --out" in sentence(refused.output)


def test_a_link_to_nowhere_is_no_folder(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    refused = advbnn("train", "CONFIG", "--out", str(link))
    assert refused.exit_code == 2
    assert "is a link to nowhere; give --out a folder" in sentence(refused.output)


def test_records_that_are_there_need_no_place_to_write() -> None:
    """They may be complete, in a folder that only its owner writes to; /proc/version stands for them."""
    assert options.file_to_write(Path("/proc/version")) == Path("/proc/version")
