"""What a run shows and keeps: TensorBoard events, the log, lines and bars."""

import re
import sys
from pathlib import Path

import pytest

from advbnn.data import ImageSet, Splits
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
    head, last = capsys.readouterr().err.splitlines()
    assert "adv_bnn" in head and "72 examples of digits[72 of 1297], 10 steps on cpu" in head
    assert re.fullmatch(r"epoch 2/2: 100%, 0:00:00 left, clean \S+ %, robust \S+ %, loss [\d.]+", last)
    assert len(last) <= 80
