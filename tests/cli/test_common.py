"""The commands that judge finished runs: evaluate, curve, transfer, predict."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from advbnn.attacks.threat import Threat
from advbnn.cli.app import app
from advbnn.cli.predict import read_images
from advbnn.defenses.defense import EarlyStopping
from advbnn.evaluation.accuracy import Evaluation
from advbnn.evaluation.records import Records
from advbnn.training.config import Config
from judged import digits

QUICK = ["--limit", "120", "--samples", "2", "--seeds", "2", "--device", "cpu"]


def advbnn(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A digit, the same one enlarged and in colour, and noise."""
    folder = tmp_path_factory.mktemp("images")
    digit = Image.fromarray(digits().images[0, 0].numpy())
    digit.save(folder / "digit.png")
    digit.convert("RGB").resize((64, 64)).save(folder / "large.png")
    noise = torch.randint(0, 256, (8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    Image.fromarray(noise.numpy()).save(folder / "noise.png")
    return [folder / name for name in ("digit.png", "large.png", "noise.png")]


def test_evaluate_keeps_records_in_the_run(runs: Path) -> None:
    arguments = ["evaluate", runs / "robust", "--attack", "clean", "--attack", "pgd", "--eot", 2, "--steps", 3, *QUICK]
    shown = advbnn(*arguments, "--eps", 0.05, "--eps", 0.1)
    assert shown.exit_code == 0, shown.output
    assert "pgd 3 EOT 2" in shown.output
    records = Records.load(runs / "robust" / "records.json")
    assert [(r.name, r.threat and r.threat.eps) for r in records] == [
        ("clean", None),
        ("pgd 3 EOT 2", 0.05),
        ("pgd 3 EOT 2", 0.1),
    ]
    assert (records[0].model.label, records[0].n, records[0].samples) == ("robust", 120, 2)
    # asked again, it has nothing to do; with other settings it refuses
    assert advbnn(*arguments).exit_code == 0
    assert Records.load(runs / "robust" / "records.json") == records
    refused = advbnn(*arguments, "--samples", 3)
    assert refused.exit_code == 1
    assert "samples was 2 and is now 3" in refused.output


def test_who_stops_it_is_told_how_it_goes_on(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Evaluation, "accuracy", stop)
    stopped = advbnn("evaluate", runs / "robust", "--out", tmp_path / "records.json", *QUICK)
    assert stopped.exit_code == 130
    assert stopped.output == "stopped; finished batches are kept, and the same command goes on from there\n"


def test_the_last_weights_are_judged_under_a_name_of_their_own(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "plain"
    shutil.copytree(runs / "plain", run)
    config = Config.from_run((run / "config.toml").read_text())
    stopping = dataclasses.replace(config.defense, early_stopping=EarlyStopping())
    (run / "config.toml").write_text(dataclasses.replace(config, defense=stopping).to_toml())
    shutil.copy(run / "model.safetensors", run / "last.safetensors")
    arguments = ["evaluate", run, "--attack", "clean", *QUICK]
    assert advbnn(*arguments).exit_code == 0
    shown = advbnn(*arguments, "--last")
    assert shown.exit_code == 0, shown.output
    assert [record.model.label for record in Records.load(run / "records.json")] == ["plain", "plain (last)"]


@pytest.mark.parametrize("command", [["evaluate"], ["audit"], ["curve"]], ids=lambda command: command[0])
def test_weights_that_are_the_last_anyway_get_no_second_name(runs: Path, tmp_path: Path, command: list[str]) -> None:
    what = ["radius"] if command == ["curve"] else []
    refused = advbnn(*command, runs / "plain", *what, "--last", "--eps", 0.1, "--out", tmp_path / "records.json")
    assert refused.exit_code == 1
    assert "was trained without early stopping" in refused.output and "leave --last out" in refused.output
    assert not (tmp_path / "records.json").exists()


def test_a_run_that_nothing_can_be_written_to_needs_another_place(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "plain"
    shutil.copytree(runs / "plain", run)
    (run / "records.json").mkdir()
    refused = advbnn("evaluate", run, "--attack", "clean", *QUICK)
    assert refused.exit_code == 2
    assert "is a folder; give --out a file" in " ".join(refused.output.replace("\u2502", " ").split())


def test_a_run_that_is_not_finished_is_judged_with_a_warning(runs: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(runs / "plain", unfinished)
    (unfinished / "model.safetensors").unlink()
    for run, warned in ((runs / "plain", False), (unfinished, True)):
        shown = advbnn("evaluate", run, "--attack", "clean", "--out", tmp_path / f"{run.name}.json", *QUICK)
        assert shown.exit_code == 0, shown.output
        assert ("is not finished" in shown.output) is warned


def test_evaluate_takes_the_radius_of_training_or_asks_for_one(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "records.json"
    assert advbnn("evaluate", runs / "robust", "--steps", 1, "--out", out, *QUICK).exit_code == 0
    assert Records.load(out).only(name="paper 1").threat == Threat("linf", 0.05)
    refused = advbnn("evaluate", runs / "plain", "--out", out, *QUICK)
    assert refused.exit_code == 1
    assert "was not trained against an attack" in refused.output
    assert "give --eps" in refused.output
    assert advbnn("evaluate", runs / "plain", "--attack", "clean", "--out", out, *QUICK).exit_code == 0


def test_curve_varies_one_thing(runs: Path, tmp_path: Path) -> None:
    out, quick = tmp_path / "records.json", [*QUICK, "--steps", 2, "--out", tmp_path / "records.json"]
    for over, at in (("radius", (0, 0.1)), ("ensemble", (1, 3)), ("steps", (1, 2)), ("eot", (1, 2))):
        values = [part for value in at for part in ("--at", value)]
        shown = advbnn("curve", runs / "robust", over, "--attack", "pgd", *values, *quick)
        assert shown.exit_code == 0, shown.output
        assert [record.at for record in Records.load(out).where(curve=over)] == list(at)
    clean = advbnn("curve", runs / "robust", "ensemble", "--attack", "clean", "--at", 2, *quick)
    assert clean.exit_code == 0, clean.output


def test_transfer_shows_affinities(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "records.json"
    arguments = ["--eps", 0.1, "--steps", 2, "--out", out, *QUICK]
    shown = advbnn("transfer", runs / "plain", runs / "robust", *arguments)
    assert shown.exit_code == 0, shown.output
    assert "from plain" in shown.output
    assert len(Records.load(out).where(kind="transfer")) == 4
    refused = advbnn("transfer", runs / "plain", runs / "plain", *arguments)
    assert refused.exit_code == 1
    assert "names of their folders" in refused.output
    for pair in (("plain", "robust"), ("robust", "plain")):
        refused = advbnn("transfer", *(runs / name for name in pair), *arguments, "--attack", "mean")
        assert refused.exit_code == 1
        assert "use advbnn evaluate RUN --attack mean" in refused.output


def test_engine_and_precision_can_be_chosen(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "records.json"
    arguments = ["evaluate", runs / "robust", "--attack", "clean", "--out", out, *QUICK]
    shown = advbnn(*arguments, "--precision", "bf16", "--engine", "eager")
    assert shown.exit_code == 0, shown.output
    (record,) = Records.load(out)
    assert (record.precision, record.versions["engine"]) == ("float32, autocast bfloat16", "eager")
    refused = advbnn(*arguments, "--engine", "graph")
    assert refused.exit_code == 1
    assert "the model is on the CPU; use 'compile' or 'auto'" in refused.output


def test_predict_answers_and_abstains(runs: Path, images: list[Path]) -> None:
    shown = advbnn("predict", runs / "robust", *images, "--coverage", 0.5, "--device", "cpu")
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert [Path(line.split()[0]).name for line in lines[1:4]] == ["digit.png", "large.png", "noise.png"]
    assert lines[3].endswith("abstain")
    assert "of the 500 test images of digits" in shown.output
    everything = advbnn("predict", runs / "robust", images[0], "--coverage", 1, "--device", "cpu")
    assert "abstain" not in everything.output.splitlines()[1]


def test_images_become_what_the_network_takes(images: list[Path]) -> None:
    grey = read_images(images, (1, 8, 8))
    assert grey.shape == (3, 1, 8, 8)
    torch.testing.assert_close(grey[0], digits().images[0] / 255)
    assert (grey[1] - grey[0]).abs().mean() < 0.1
    assert read_images(images, (3, 16, 16)).shape == (3, 3, 16, 16)
    with pytest.raises(ValueError, match="grey or colour squares"):
        read_images(images, (3, 8, 16))


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_errors_are_one_line(command: str, tmp_path: Path, images: list[Path]) -> None:
    shown = advbnn(command, tmp_path, *([images[0]] if command == "predict" else []))
    assert shown.exit_code == 1
    assert "is not a run folder" in shown.output
    assert len(shown.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "device='tpu' is unknown: expected cpu, cuda, or one GPU such as cuda:1"),
        (["--device", "cuda:99"], "device='cuda:99' does not exist: "),
    ],
)
def test_what_is_not_there_is_said_in_one_line(runs: Path, arguments: list[str], message: str) -> None:
    shown = advbnn("evaluate", runs / "plain", "--attack", "clean", "--limit", 120, "--seeds", 1, *arguments)
    assert shown.exit_code == 1
    assert shown.output.startswith("error: ") and message in shown.output
    assert len(shown.output.strip().splitlines()) == 1


@pytest.mark.filterwarnings("default::advbnn.evaluation.accuracy.SmallSampleWarning")
def test_warnings_are_one_line_and_the_table_fits_a_terminal(runs: Path, tmp_path: Path) -> None:
    few = ["--limit", 20, "--samples", 2, "--seeds", 1, "--device", "cpu", "--out", tmp_path / "records.json"]
    shown = advbnn("evaluate", runs / "robust", "--attack", "clean", "--attack", "fgsm", *few)
    assert shown.exit_code == 0
    first, *_ = shown.output.splitlines()
    assert first.startswith("warning: 20 images: the 95 % interval")
    assert "varied" not in shown.output and "over seeds" not in shown.output  # nothing was, and there is one
    assert "linf 0.05" in shown.output


def test_predict_refuses_bad_input(runs: Path, images: list[Path], tmp_path: Path) -> None:
    for arguments, message in (
        ([tmp_path / "nothing.png"], "there is no such file"),
        ([tmp_path], "is a folder; name files in it"),
        ([images[0], "--coverage", 2], "coverage must be"),
        ([images[0], "--samples", 0], "samples must be at least 1"),
    ):
        shown = advbnn("predict", runs / "robust", *arguments, "--device", "cpu")
        assert shown.exit_code == 1
        assert message in shown.output
