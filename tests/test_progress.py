import sys
from itertools import count

import pytest

from advbnn.progress import progress


def test_plain_lines_with_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = count(0, 10)
    monkeypatch.setattr("advbnn.progress.time.monotonic", lambda: float(next(clock)))
    with progress("photos", "images") as report:
        report(100, 400)  # where a resumed piece of work begins
        report(200, 400)
        report(300, None)
    assert capsys.readouterr().err.splitlines() == [
        "photos: 100 of 400 images",
        "photos: 200 of 400 images, 40 s left",
        "photos: 300 images",
    ]


def test_lines_are_rare(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("photos", "images") as report:
        for done in range(1000):
            report(done, 1000)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("unit", ["bytes", "images"])
def test_a_live_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], unit: str
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    with progress("photos", unit) as report:
        report(2000, 2000, "the last one")
    shown = capsys.readouterr().err
    assert "photos, the last one" in shown
    assert ("2.0/2.0 kB" if unit == "bytes" else "2000/2000") in shown
