"""What a run shows: TensorBoard, lines and bars."""

from pathlib import Path

import pytest

from advbnn.data import ImageSet, Splits
from quick import quick, train


def test_tensorboard_is_asked_for_by_name(
    digits: Splits[ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

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


def test_progress_on_a_terminal(digits: Splits[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    train(digits, quick(), progress=True)
    assert "epoch 2/2" in screen.getvalue() and "robust" in screen.getvalue()
