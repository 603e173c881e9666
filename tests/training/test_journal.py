"""What a run shows: TensorBoard, lines and bars."""

import io
import re
import sys
from pathlib import Path

import pytest

from advbnn.data import ImageSet, Splits
from quick import quick, train


def test_tensorboard_is_asked_for_by_name(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'advbnn\[tensorboard\]'"):
        train(digits, quick("bnn"), out=tmp_path / "run", tensorboard=True)


def test_tensorboard_events(digits: Splits[ImageSet], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(digits, quick("bnn"), out=tmp_path / "run", tensorboard=True)
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_progress_in_plain_lines(
    digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("advbnn.progress.SECONDS_BETWEEN_LINES", 0.0)
    train(digits, quick(), progress=True)
    head, first, last = capsys.readouterr().err.splitlines()
    assert head.startswith("adv_bnn, profile 'ours', changed: architecture, ")
    assert "72 examples of digits[72 of 1297], 10 steps on cpu" in head
    for line, epoch in ((first, 1), (last, 2)):
        assert re.fullmatch(rf"epoch {epoch}/2, 0:00:0\d left, clean \S+ %, robust \S+ %, loss [\d.]+", line)


def test_the_log_has_all_metrics(digits: Splits[ImageSet], tmp_path: Path) -> None:
    train(digits, quick(), out=tmp_path / "run")
    log = (tmp_path / "run" / "log.txt").read_text()
    for word in ("clean", "robust", "loss", "nll", "kl", "examples/s"):
        assert f" {word}" in log


def test_progress_fits_a_terminal(digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    train(digits, quick(), progress=True)
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()))
    assert all(len(line) <= 80 for line in lines)
    assert re.search(r"epoch 2/2 \S+ 0:00:00 clean \S+ %, robust \S+ %, loss [\d.]+ *$", "\n".join(lines).strip())
