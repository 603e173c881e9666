"""Signals and closed pipes stop a run after the current step, with its state saved."""

import errno
import io
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from advbnn.data import ImageSet, Splits
from advbnn.training import checkpoint
from advbnn.training.interrupts import Interrupted
from advbnn.training.loading import load_trained
from advbnn.training.state import TrainingState
from quick import quick, same, train


def test_ctrl_c_saves_and_resuming_gives_the_same(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, whole = quick(), train(digits, quick())
    advance = TrainingState.advance
    handler = signal.getsignal(signal.SIGINT)  # in the background, a shell ignores Ctrl-C
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as when these tests run under nohup
    for which, step in ((signal.SIGINT, 1), (signal.SIGTERM, 3), (signal.SIGTERM if ignored else signal.SIGHUP, 7)):

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


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_nohup_is_respected(digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    before, advance = signal.signal(signal.SIGHUP, signal.SIG_IGN), TrainingState.advance

    def hung_up(self: TrainingState, x: Tensor, y: Tensor) -> None:
        signal.raise_signal(signal.SIGHUP)
        advance(self, x, y)

    monkeypatch.setattr(TrainingState, "advance", hung_up)
    try:
        assert train(digits, quick("bnn")).steps == 10
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_closed_pipe_ends_a_run_with_a_checkpoint(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(io.StringIO):
        """Stderr into a program that ends after a line, such as head."""

        def flush(self) -> None:
            if self.getvalue().count("\n") > 1:
                raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("advbnn.display.progress.SECONDS_BETWEEN_LINES", 0.0)
    whole, out = train(digits, quick("bnn")), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Closed())
        with pytest.raises(Interrupted, match="step 1 of 10") as stop:
            train(digits, quick("bnn"), out=out, progress=True)
    assert stop.value.signal == getattr(signal, "SIGPIPE", None)
    found = checkpoint.latest(out / "checkpoints")
    assert found is not None and found.step == 1
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)  # closed before the start, by 2>&-
        assert same(train(digits, quick("bnn"), out=out, resume=True, progress=True).model, whole.model)


def test_second_ctrl_c_stops_at_once(digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(self: TrainingState, x: Tensor, y: Tensor) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingState, "advance", impatient)
    with pytest.raises(KeyboardInterrupt) as stop:
        train(digits, quick())
    assert not isinstance(stop.value, Interrupted)
