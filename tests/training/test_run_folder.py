"""Runs that stop, by a signal, a diverging loss or a full disk, and folders that are refused."""

import errno
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.priors import GaussianPrior, Prior
from advbnn.data import ImageSet, Splits
from advbnn.defenses.optimizers import SGDOptimizer
from advbnn.defenses.schedules import Constant
from advbnn.errors import CheckpointError, DivergedError, RunError
from advbnn.training import checkpoint
from advbnn.training.checkpoint import CheckpointWarning
from advbnn.training.interrupts import Interrupted
from advbnn.training.loading import load_trained
from advbnn.training.loop import fit
from advbnn.training.state import TrainingState
from quick import quick, same, train, weights


def test_ctrl_c_saves_and_resuming_gives_the_same(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, whole = quick(), train(digits, quick())
    advance = TrainingState.advance
    handler = signal.getsignal(signal.SIGINT)  # in the background, a shell ignores Ctrl-C
    for which, step in ((signal.SIGINT, 3), (signal.SIGTERM, 7)):

        def interrupted(self: TrainingState, x: Tensor, y: Tensor, which: Any = which, step: int = step) -> None:
            if self.total_steps == step:
                signal.raise_signal(which)
            advance(self, x, y)

        with monkeypatch.context() as patch:
            patch.setattr(TrainingState, "advance", interrupted)
            with pytest.raises(Interrupted, match=f"after step {step + 1} of 10, .*resume") as stop:
                train(digits, value, out=tmp_path / "run", resume=True, log_every=4)
        assert stop.value.signal == which and signal.getsignal(which) is not None
        assert not load_trained(tmp_path / "run").finished
    result = train(digits, value, out=tmp_path / "run", resume=True, log_every=4)
    assert same(result.model, whole.model)
    assert [line["step"] for line in result.history] == [4, 5, 9, 10]  # each once, and none missing
    assert signal.getsignal(signal.SIGINT) is handler


def test_second_ctrl_c_stops_at_once(digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(self: TrainingState, x: Tensor, y: Tensor) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingState, "advance", impatient)
    with pytest.raises(KeyboardInterrupt) as stop:
        train(digits, quick())
    assert not isinstance(stop.value, Interrupted)


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
    with pytest.raises(RunError, match="objective.alpha = 0.02 there, 0.5 now"):
        train(digits, quick("bnn", objective={"alpha": 0.5}), out=tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="seed = 0 there, 1 now"):
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
    with pytest.raises(RunError, match=r"another network: \(2\): Tanh\(\) there, \(2\): ELU.* now"):
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


def test_a_damaged_checkpoint_costs_time_and_nothing_else(digits: Splits[ImageSet], tmp_path: Path) -> None:
    value = quick("bnn")
    whole = train(digits, value, out=tmp_path / "run", save_every=0.0)
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    (newest / "weights.safetensors").write_bytes(b"")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.warns(CheckpointWarning, match="damaged"):
        again = train(digits, value, out=tmp_path / "run", resume=True)
    assert same(again.model, whole.model)
