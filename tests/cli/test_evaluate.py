import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from advbnn.attacks.threat import Threat
from advbnn.defenses.defense import EarlyStopping
from advbnn.evaluation.accuracy import Evaluation
from advbnn.evaluation.records import Records
from advbnn.training.config import Config
from images import save

QUICK = ["--limit", "120", "--samples", "2", "--seeds", "2", "--device", "cpu"]
Command = Callable[..., str]


def test_keeps_records_in_the_run(runs: Path, advbnn: Command) -> None:
    run, file = runs / "robust", runs / "robust" / "records.json"
    arguments = ["evaluate", run, "--attack", "clean", "--attack", "pgd", "--eot", 2, "--steps", 3, *QUICK]
    assert "pgd 3 EOT 2" in advbnn(*arguments, "--eps", 0.05, "--eps", 0.1)
    records = Records.load(file)
    expected = [("clean", None), ("pgd 3 EOT 2", 0.05), ("pgd 3 EOT 2", 0.1)]
    assert [(r.name, r.threat and r.threat.eps) for r in records] == expected
    assert (records[0].model.label, records[0].n, records[0].samples) == ("robust", 120, 2)
    advbnn(*arguments)  # nothing to do
    assert Records.load(file) == records
    assert "samples was 2 and is now 3" in advbnn(*arguments, "--samples", 3, status=1)


def test_a_file_gets_whole_names_and_numbers(runs: Path, advbnn: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the log of a job; names of runs often differ at their end only."""
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest-xdist sets
    long = runs / "objective.alpha=0.1,network.prior_std=0.05,schedule.epochs=3,seed=12"
    shutil.move(runs / "plain", long)
    shown = advbnn("evaluate", long, "--attack", "clean", *QUICK)
    assert long.name in shown and "95 % interval" in shown


def test_takes_the_radius_of_training_or_needs_one(runs: Path, tmp_path: Path, advbnn: Command) -> None:
    out = ["--out", tmp_path / "records.json"]
    advbnn("evaluate", runs / "robust", "--steps", 1, *out, *QUICK)
    assert Records.load(out[1]).only(name="pgd 1 EOT 10").threat == Threat("linf", 0.05)
    assert "give --eps" in advbnn("evaluate", runs / "plain", *out, *QUICK, status=1)
    assert {record.model.label for record in Records.load(out[1])} == {"robust"}  # refused before anything is measured
    l2 = ["--attack", "pgd", "--norm", "l2"]
    assert "--norm l2" in advbnn("evaluate", runs / "robust", *l2, *out, *QUICK, status=1)
    advbnn("evaluate", runs / "plain", "--attack", "clean", *out, *QUICK)


def test_says_where_an_attack_is_weak(runs: Path, advbnn: Command) -> None:
    shown = advbnn("evaluate", runs / "robust", "--attack", "paper", "--eps", 0.15, *QUICK)
    assert "note: paper 20 ends inside the ball" in shown and "--eot" in shown
    averaged = advbnn("evaluate", runs / "robust", "--attack", "pgd", "--eot", 2, "--steps", 2, "--eps", 0.15, *QUICK)
    deterministic = advbnn("evaluate", runs / "plain", "--attack", "pgd", "--steps", 2, "--eps", 0.15, *QUICK)
    assert "note:" not in averaged and "note:" not in deterministic


def test_an_interrupted_evaluation_says_how_to_resume(
    runs: Path, advbnn: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Evaluation, "accuracy", stop)
    assert "the same command resumes" in advbnn("evaluate", runs / "robust", *QUICK, status=130)


def test_last_weights_have_their_own_label(runs: Path, advbnn: Command) -> None:
    run = runs / "plain"
    for command in (["evaluate", run], ["audit", run, "--eps", 0.1], ["curve", run, "radius"]):
        assert "leave --last out" in advbnn(*command, "--last", "--device", "cpu", status=1)
    config = Config.from_run((run / "config.toml").read_text())
    stopping = dataclasses.replace(config.defense, early_stopping=EarlyStopping())
    (run / "config.toml").write_text(dataclasses.replace(config, defense=stopping).to_toml())
    shutil.copy(run / "model.safetensors", run / "last.safetensors")
    with (run / "SHA256SUMS").open("a") as sums:
        sums.write((run / "SHA256SUMS").read_text().replace("model", "last"))
    for last in ([], ["--last"]):
        advbnn("evaluate", run, "--attack", "clean", *QUICK, *last)
    assert [record.model.label for record in Records.load(run / "records.json")] == ["plain", "plain (last)"]


def test_an_unfinished_run_gives_a_warning_and_unwritable_records_an_error(runs: Path, advbnn: Command) -> None:
    run = runs / "plain"
    command = ["evaluate", run, "--attack", "clean", *QUICK]
    for finished in (True, False):
        assert ("is not finished" in advbnn(*command)) is not finished
        (record,) = Records.load(run / "records.json")
        assert record.model.label == ("plain" if finished else "plain (step 42)")
        (run / "model.safetensors").unlink(missing_ok=True)
        (run / "records.json").unlink()
    (run / "records.json").mkdir()
    assert "is a folder; give --out a file" in advbnn(*command, status=2)


def test_engine_and_precision(runs: Path, advbnn: Command) -> None:
    arguments = ["evaluate", runs / "robust", "--attack", "clean", *QUICK]
    advbnn(*arguments, "--precision", "bf16", "--engine", "eager")
    (record,) = Records.load(runs / "robust" / "records.json")
    assert (record.precision, record.versions["engine"]) == ("float32, autocast bfloat16", "eager")
    assert "use 'compile' or 'auto'" in advbnn(*arguments, "--engine", "graph", status=1)


@pytest.mark.filterwarnings("default::advbnn.evaluation.accuracy.SmallSampleWarning")
def test_warnings_are_one_line_and_empty_columns_are_left_out(runs: Path, advbnn: Command) -> None:
    few = ["--limit", 20, "--samples", 2, "--seeds", 1, "--device", "cpu"]
    shown = advbnn("evaluate", runs / "robust", "--attack", "clean", "--attack", "fgsm", *few)
    assert shown.startswith("warning: 20 images: the 95 % interval")
    assert "varied" not in shown and "over seeds" not in shown  # there is one seed, and nothing varies
    assert "linf 0.05" in shown


def test_renamed_class_folders_are_noticed(tmp_path: Path, advbnn: Command) -> None:
    photos, run = tmp_path / "photos", tmp_path / "run"
    for number, name in enumerate(("cat", "dog")):
        for split in ("train", "test"):
            for shade in range(10):
                save(photos / split / name / f"{shade}.png", 90 * number + shade, 8)
    (tmp_path / "run.toml").write_text(f'data = "{photos}"\nlike = "digits"\ndefense = "adv"\narchitecture = "mlp"\n')
    settings = ["schedule.epochs=1", "batch_size=20", "attack.steps=1"]
    changed = [part for setting in settings for part in ("--set", setting)]
    advbnn("train", tmp_path / "run.toml", "--out", run, "--device", "cpu", *changed)
    for split in ("train", "test"):
        (photos / split / "cat").rename(photos / split / "eel")
    image = photos / "test" / "dog" / "1.png"
    for command in (["evaluate", run], ["predict", run, image], ["audit", run, "--level", "quick"]):
        shown = advbnn(*command, "--device", "cpu", status=1)
        assert "class 0 was 'cat' and is now 'dog'" in shown and "former names" in shown


def test_what_does_not_fit_is_refused_before_anything_is_measured(runs: Path, advbnn: Command) -> None:
    arguments = ["evaluate", runs / "plain", "--attack", "clean", "--attack", "mean", "--eps", 0.1, *QUICK]
    assert "use 'pgd'" in advbnn(*arguments, status=1)
    points = runs / "points.safetensors"
    save_file({"mine": torch.rand(120, 1, 8, 8)}, points)
    assert "give --eps" in advbnn("evaluate", runs / "plain", "--points", points, *QUICK, status=1)
    assert not (runs / "plain" / "records.json").exists()


def test_a_network_near_chance_is_said_to_be_so_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advbnn: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    net = "net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()"
    build = f"from torch import nn\ndef build():\n    {net}\n    nn.init.zeros_(net[1].weight)\n    return net\n"
    (tmp_path / "nets.py").write_text(build)
    shown = advbnn("evaluate", "--model", "nets.py:build", "--data", "digits", "--attack", "clean", "--device", "cpu")
    assert shown.index("Near chance") < shown.index("95 % interval")
