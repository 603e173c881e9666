"""What a run shows and keeps: TensorBoard events, the log, lines and bars."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from advbnn.data import ImageSet, Splits
from advbnn.display.progress import ProgressBar
from advbnn.training.loop import fit
from advbnn.training.run_logger import RunLogger
from advbnn.training.state import TrainingState
from quick import quick, train


def test_a_missing_tensorboard_is_named(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'advbnn\[tensorboard\]'"):
        train(digits, quick("bnn"), out=tmp_path / "run", tensorboard=True)


def test_tensorboard_events(digits: Splits[ImageSet], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(digits, quick("bnn"), out=tmp_path / "run", tensorboard=True)
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_progress_in_plain_lines(digits: Splits[ImageSet], capsys: pytest.CaptureFixture[str]) -> None:
    train(digits, quick(), progress=True)
    head, last, note = capsys.readouterr().err.splitlines()
    assert "adv_bnn" in head and "72 examples of digits[72 of 1297], 10 steps on cpu" in head
    assert re.fullmatch(r"epoch 2/2: 100%, 0:00:00 left, eval clean \S+%, train robust \S+%, loss [\d.]+", last)
    assert len(last) <= 80
    assert note.startswith("Near chance") and "schedule.epochs" in note  # after ten steps


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("clean", [0.4, 0.6])
def test_a_clean_accuracy_below_the_robust_one_is_explained_once(
    clean: float, statistics: bool, tmp_path: Path
) -> None:
    found = {"clean_accuracy": clean, "robust_accuracy": 0.5, "loss": 1.0, "nll": 1.0, "kl": 0.0}
    training: Any = SimpleNamespace(
        **{"total_steps": 1, "examples_seen": 16, "epoch_of_last_step": 0, "lr": 0.1, "kl_weight": 0.0, "scale": None},
        **{"check_loss": lambda: None, "read_step_metrics": lambda: found},
        model=nn.Sequential(nn.BatchNorm1d(2, track_running_stats=statistics)),
    )
    lines: list[str] = []
    run: Any = SimpleNamespace(path=tmp_path, write_metrics=lambda line: None, write_log=lines.append)
    logger = RunLogger(run, ProgressBar(None), log_every=1, save_every=60.0)
    logger._marks = [(0, 0, 0.0)]
    logger._write_metrics(training)
    logger._write_metrics(training)
    assert sum("running statistics" in line for line in lines) == (clean < 0.5 and statistics)


def test_the_speed_does_not_depend_on_where_an_interval_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """391 steps an epoch, of 0.1 s each, and 2 s for every line, checkpoint and validation."""
    clock = [0.0]
    monkeypatch.setattr("advbnn.training.run_logger.time.monotonic", lambda: clock[0])
    lengths = {}
    for log_every in (50, 390, 391, 1000):
        logger = RunLogger(None, ProgressBar(None), log_every=log_every, save_every=60.0)
        training: Any = SimpleNamespace(total_steps=100, examples_seen=12_800)  # resumed
        logger._marks = [(100, 12_800, clock[0])]
        speeds = []
        for step in range(101, 3 * 391 + 1):
            clock[0] += 0.1
            training.total_steps, training.examples_seen = step, step * 128
            if step % 391 == 0 or step % 391 % log_every == 0:
                speeds.append(logger._speed(training))
                clock[0] += 2
        lengths[log_every] = len(speeds)
        slowest = log_every * 128 / (log_every * 0.1 + 4)  # two lines in an interval
        assert slowest <= min(speeds) and max(speeds) <= 1280 * (1 + 1e-9), log_every
    assert lengths[390] == 6


def test_examples_of_all_epochs_are_counted(digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    """72 digits in batches of 16: the last has 8, unless it is dropped."""
    seen: list[int] = []
    after_step = RunLogger.after_step

    def counted(self: RunLogger, training: TrainingState) -> None:
        seen.append(training.examples_seen)
        after_step(self, training)

    monkeypatch.setattr(RunLogger, "after_step", counted)
    train(digits, quick("bnn"))
    assert seen == [16, 32, 48, 64, 72, 88, 104, 120, 136, 144]
    train(digits, quick("bnn", drop_last=True))
    assert seen[10:] == [16, 32, 48, 64, 80, 96, 112, 128]
    loader = [(digits.train.images[rows], digits.train.labels[rows]) for rows in torch.arange(72).split(20)]
    fit(quick("none").build(classes=10, shape=(1, 8, 8)), loader, quick("none"))
    assert seen[18:] == [20, 40, 60, 72, 92, 112, 132, 144]  # in batches of the loader
