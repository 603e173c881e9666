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
    monkeypatch.setattr("advbnn.display.SECONDS_BETWEEN_LINES", 0.0)
    train(digits, quick(), progress=True)
    head, first, last = capsys.readouterr().err.splitlines()
    assert head.startswith("adv_bnn with the numbers of 'ours', changed in architecture, ")
    assert "72 examples of digits[72 of 1297], 10 steps on cpu" in head
    assert first.startswith("epoch 1/2, loss ") and last.startswith("epoch 2/2, loss ")
    for word in ("nll", "kl", "clean", "robust", "examples/s", "0:00:00 left"):
        assert word in last


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
