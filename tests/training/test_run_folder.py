"""Runs that stop, by a diverging loss or a full disk, and folders that are refused or repaired."""

import errno
import json
import os
import random
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.priors import GaussianPrior, Prior
from advbnn.data import ImageSet, Splits
from advbnn.defenses.optimizers import SGDOptimizer
from advbnn.defenses.schedules import Constant
from advbnn.errors import CheckpointError, DivergedError, FileError, RunError
from advbnn.machine.files import explain_file_errors, locked_folder
from advbnn.training import checkpoint
from advbnn.training.checkpoint import CheckpointWarning
from advbnn.training.loading import load_trained
from advbnn.training.loop import fit
from advbnn.training.state import TrainingState
from quick import quick, same, train, weights


@pytest.mark.parametrize("name", ["bnn", "adv_bnn"])
def test_a_diverged_run_stops_with_step_learning_rate_and_remedy(
    digits: Splits[ImageSet], tmp_path: Path, name: str
) -> None:
    """Also if the attack is the first to see the NaN. The state is saved, but not as a checkpoint."""
    value = quick(name, optimizer=SGDOptimizer(lr=1e30), schedule=Constant(epochs=5))
    with pytest.raises(DivergedError, match=r"step [123] .*1e\+30.*lower optimizer.lr.*diverged") as error:
        train(digits, value, out=tmp_path / "run", save_every=0.0)
    assert "no good checkpoint" in str(error.value) or "step-00000001" in str(error.value)
    assert list((tmp_path / "run" / "diverged").glob("step-*/weights.safetensors"))
    for kept in (tmp_path / "run" / "checkpoints").glob("step-*"):
        found = checkpoint.latest(kept.parent)
        assert found is not None
        model = value.build(classes=10, shape=(1, 8, 8))
        found.load_weights(model)
        assert all(torch.isfinite(tensor).all() for tensor in weights(model))


def test_a_finished_run_says_so(digits: Splits[ImageSet], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = train(digits, quick("bnn"), out=tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()  # as if killed just before the end
    for resume in (True, False):
        again = train(digits, quick("bnn"), out=tmp_path / "run", resume=resume, progress=True)
        assert "is finished: 10 steps" in capsys.readouterr().err
        assert same(again.model, first.model) and again.history == first.history
    assert load_trained(tmp_path / "run").finished


def test_a_folder_of_something_else_is_refused(digits: Splits[ImageSet], tmp_path: Path) -> None:
    train(digits, quick("bnn"), out=tmp_path / "run")
    with pytest.raises(RunError, match="objective.alpha .*0.02.*0.5"):
        train(digits, quick("bnn", objective={"alpha": 0.5}), out=tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="seed .*0.*1"):
        train(digits, quick("bnn"), out=tmp_path / "run", resume=True, seed=1)
    changed = Splits(replace(digits.train, images=255 - digits.train.images), digits.test)
    with pytest.raises(RunError, match="other data"):
        train(changed, quick("bnn"), out=tmp_path / "run", resume=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(RunError, match="another folder"):
        train(digits, quick("bnn"), out=tmp_path / "full")


def test_a_run_of_another_network_is_refused(digits: Splits[ImageSet], tmp_path: Path) -> None:
    def go(activation: nn.Module, prior: Prior) -> None:
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), activation)
        fit(bayesianize(net, prior=prior), digits, quick("bnn"), out=tmp_path / "run", resume=True)

    go(nn.Tanh(), GaussianPrior(std=0.1))
    with pytest.raises(RunError, match=r"another network: prior=GaussianPrior\(std=0.1.* there, .*std=0.2.* now"):
        go(nn.Tanh(), GaussianPrior(std=0.2))
    with pytest.raises(RunError, match=r"\(2\): Tanh\(\) .*\(2\): ELU"):
        go(nn.ELU(), GaussianPrior(std=0.1))


def test_a_prior_by_a_function_is_the_same_when_the_run_resumes(digits: Splits[ImageSet], tmp_path: Path) -> None:
    for _ in range(2):
        prior = GaussianPrior(std=lambda name, _: 0.1)  # elsewhere in memory each time
        net = bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), prior=prior)
        assert fit(net, digits, quick("bnn"), out=tmp_path / "run", resume=True).steps == 10


def test_a_run_resumes_with_the_same_number_of_processes_only(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(TypeError):
        patch.setattr(TrainingState, "advance", None)  # as a power cut
        train(digits, quick("bnn"), out=tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    facts = json.loads(file.read_text())
    file.write_text(json.dumps({**facts, "processes": 2}))
    with pytest.raises(RunError, match="2 processes.*1"):
        train(digits, quick("bnn"), out=tmp_path / "run", resume=True)
    file.write_text(json.dumps(facts))
    train(digits, quick("bnn"), out=tmp_path / "run", resume=True)
    file.write_text(json.dumps({**facts, "processes": 2}))
    train(digits, quick("bnn"), out=tmp_path / "run")  # finished, so the number does not matter


def test_an_unfinished_run_is_not_overwritten(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match=r"No space left.*resume"):
        patch.setattr(torch, "save", full)
        train(digits, quick("bnn"), out=tmp_path / "run")
    with pytest.raises(RunError, match="after step 0.*--resume"):
        train(digits, quick("bnn"), out=tmp_path / "run")
    with pytest.raises(RunError, match="no weights yet"):
        load_trained(tmp_path / "run")
    assert train(digits, quick("bnn"), out=tmp_path / "run", resume=True).steps == 10


def stopped(digits: Splits[ImageSet], out: Path, monkeypatch: pytest.MonkeyPatch, step: int = 7) -> None:
    """A run that ended after some steps, as by a power cut, with a checkpoint after each of them."""
    advance = TrainingState.advance

    def until(self: TrainingState, x: Tensor, y: Tensor) -> None:
        if self.total_steps == step:
            raise ZeroDivisionError
        advance(self, x, y)

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(TrainingState, "advance", until)
        train(digits, quick("bnn"), out=out, save_every=0.0, log_every=1)


def test_a_disk_that_fills_up_names_what_was_kept(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def no_metrics(path: Path, text: str) -> None:
        with explain_file_errors(path, "cannot be written", "make room"):
            if path.name == "metrics.jsonl":
                full()

    stopped(digits, tmp_path / "run", monkeypatch)
    places = {"pathlib.Path.write_bytes": full, "advbnn.machine.files.append_text": no_metrics}
    for place, error in zip(places, (CheckpointError, FileError), strict=True):
        with monkeypatch.context() as patch:
            patch.setattr(place, places[place])
            with pytest.raises(error, match=r"No space left.*kept.*step 7"):
                train(digits, quick("bnn"), out=tmp_path / "run", resume=True, save_every=0.0, log_every=1)
    assert train(digits, quick("bnn"), out=tmp_path / "run", resume=True).steps == 10


@pytest.mark.parametrize("damage", [b"\xff", b"{}"], ids=["bytes", "empty"])
def test_damaged_records_of_a_run_are_repaired_when_it_resumes(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    whole, out = train(digits, quick("bnn"), log_every=1), tmp_path / "run"
    stopped(digits, out, monkeypatch)
    facts, config = (out / "run.json").read_bytes(), (out / "config.toml").read_bytes()
    lines = (out / "metrics.jsonl").read_bytes().splitlines()
    (out / "metrics.jsonl").write_bytes(b"\n".join([*lines[:2], damage, *lines[3:]]) + b"\n")
    (out / "run.json").write_bytes(damage)
    (out / "config.toml").write_bytes(b'defense = "bnn' + damage)
    assert load_damaged(out) and (out / "run.json").read_bytes() == damage
    result = train(digits, quick("bnn"), out=out, resume=True, log_every=1)
    assert same(result.model, whole.model)
    assert [line["step"] for line in result.history] == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert ((out / "run.json").read_bytes(), (out / "config.toml").read_bytes()) == (facts, config)
    log = (out / "log.txt").read_text()
    assert all(words in log for words in ("run.json was damaged", "config.toml was damaged", "metrics.jsonl: damaged"))


def load_damaged(out: Path) -> bool:
    """Whether loading a run with a damaged config.toml names that file and a remedy."""
    with pytest.raises((RunError, FileError), match=r"config\.toml .*restore"):
        load_trained(out)
    return True


def test_any_flipped_bit_is_repaired_refused_or_harmless(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In run.json, config.toml, metrics.jsonl and the newest manifest: a run resumes, or the message names the file."""
    whole, chance = train(digits, quick("bnn")), random.Random(0)
    stopped(digits, tmp_path / "run", monkeypatch, step=9)
    for name in ("run.json", "config.toml", "metrics.jsonl", "checkpoints/step-00000009/manifest.json"):
        for trial in range(4):
            out = Path(shutil.copytree(tmp_path / "run", tmp_path / f"{trial} {Path(name).name}"))
            content = bytearray((out / name).read_bytes())
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            (out / name).write_bytes(content)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CheckpointWarning)  # of a manifest
                assert same(train(digits, quick("bnn"), out=out, resume=True).model, whole.model)


def test_a_folder_with_nothing_but_beginnings_is_taken_over(digits: Splits[ImageSet], tmp_path: Path) -> None:
    """A process that was killed before it had written config.toml leaves run.json and half of config.toml."""
    out = tmp_path / "run"
    train(digits, quick("bnn"), out=tmp_path / "whole")
    for resume in (True, False):
        out = tmp_path / f"{resume}"
        out.mkdir()
        shutil.copy(tmp_path / "whole" / "run.json", out)
        for name in (".lock", ".run.json.17", ".config.toml.17"):
            (out / name).touch()
        assert train(digits, quick("bnn"), out=out, resume=resume).steps == 10
        assert not list(out.glob(".*"))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "run.json").write_text("{}")
    with pytest.raises(RunError, match="another folder"):
        train(digits, quick("bnn"), out=tmp_path / "theirs", resume=True)


def test_what_a_killed_process_left_is_removed_at_the_next_start(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    stopped(digits, out, monkeypatch)
    (out / ".model.safetensors.17").touch()
    for name in (".deleting-step-00000003", ".writing-00000008"):
        (out / "checkpoints" / name).mkdir()
    shutil.copytree(out / "checkpoints" / "step-00000007", out / "checkpoints" / ".deleting-step-00000006")
    (out / ".records.json.17").touch()  # of an evaluation that may be under way
    train(digits, quick("bnn"), out=out, resume=True)
    assert [path.name for path in out.rglob(".*")] == [".records.json.17"]


def test_a_folder_in_use_is_refused(digits: Splits[ImageSet], tmp_path: Path) -> None:
    with locked_folder(tmp_path / "run"), pytest.raises(RunError, match=rf"in use.*{os.getpid()}"):
        train(digits, quick("bnn"), out=tmp_path / "run", resume=True)
    assert train(digits, quick("bnn"), out=tmp_path / "run", resume=True).steps == 10


def test_threads_and_kernels_are_recorded_and_a_change_is_noted(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(digits, tmp_path / "run", monkeypatch)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["threads"] == torch.get_num_threads() and facts["device"] == "cpu"
    assert facts["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    train(digits, quick("bnn"), out=tmp_path / "run", resume=True)
    assert f"threads {facts['threads']} before, 77 now" in (tmp_path / "run" / "log.txt").read_text()


def test_a_damaged_checkpoint_costs_time_and_nothing_else(digits: Splits[ImageSet], tmp_path: Path) -> None:
    value = quick("bnn")
    whole = train(digits, value, out=tmp_path / "run", save_every=0.0)
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    (newest / "weights.safetensors").write_bytes(b"")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.warns(CheckpointWarning, match="damaged"):
        again = train(digits, value, out=tmp_path / "run", resume=True)
    assert same(again.model, whole.model)
