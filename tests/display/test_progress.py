"""Progress: a bar on a terminal, lines elsewhere, and the shares that attacks report."""

import sys
from itertools import count

import pytest

from advbnn.attacks import APGD, CW, PGD, Attack, Transfer
from advbnn.display.progress import ProgressBar
from advbnn.evaluation.accuracy import evaluate
from every_attack import ATTACKS, CLASSES, LINF, X, every, images, predicted, small_net
from trained_nets import digits, net


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line at every update."""
    monkeypatch.setattr("advbnn.display.progress.SECONDS_BETWEEN_LINES", 0.0)


def test_plain_lines_with_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = count(0, 10)
    monkeypatch.setattr("advbnn.display.progress.time.monotonic", lambda: float(next(clock)))
    with ProgressBar("photos", "images") as bar:
        bar.update(100, 400)  # where resumed work starts
        bar.update(200, 400, "cats")
        bar.update(300, None, "")
    with ProgressBar("training") as bar:
        bar.update(0.25, 1)
        bar.update(0.5, 1, description="epoch 2/2")
    assert capsys.readouterr().err.splitlines() == [
        "photos: 100 of 400 images",
        "photos: 200 of 400 images, 0:00:40 left, cats",
        "photos: 300 images",
        "training: 25%",
        "epoch 2/2: 50%, 0:00:40 left",
    ]


def test_lines_are_rare_but_for_the_last_note(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("photos", "images") as bar:
        for done in range(1, 1001):
            bar.update(done, 1000)
        assert capsys.readouterr().err == ""
        bar.update(1000, 1000, "loss 0.1")
    assert capsys.readouterr().err.endswith("loss 0.1\n")


@pytest.mark.parametrize(("unit", "shown"), [("bytes", "2.0/2.0 kB"), ("images", "2000/2000"), ("", "100%")])
def test_a_live_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], unit: str, shown: str
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    with ProgressBar("photos [a]", unit) as bar:  # names may have brackets
        bar.update(2000, 2000, "the [/last] one")
        bar.print("a line [b] above")
    written = capsys.readouterr().err
    assert all(text in written for text in ("photos [a]", shown, "the [/last] one", "a line [b] above"))


@pytest.mark.parametrize(("name", "threat"), every())
def test_every_attack_reports_rising_shares(name, threat):
    shares = []
    ATTACKS[name](threat, progress=shares.append)(small_net(), X, predicted(small_net()), seed=0)
    assert shares == sorted(set(shares)) and shares[-1] == 1
    # one has one step only, others end when all are broken
    assert name in ("fgsm", "fab", "arc") or len({share for share in shares if 0 < share < 1}) >= 2


def test_shares_rise_over_all_chunks(often: None, capsys: pytest.CaptureFixture[str]):
    shares = []
    attack = PGD(LINF, steps=4, restarts=2, batch_size=2, progress=shares.append)
    attack(small_net(), *images(5), seed=0)
    assert shares == sorted(shares) and shares[0] > 0 and shares[-1] == pytest.approx(1)
    PGD(LINF, steps=2, progress=True)(small_net(), *images())
    assert "PGD: 50%" in capsys.readouterr().err
    assert attack == PGD(LINF, steps=4, restarts=2) and "progress" not in repr(attack)
    shares.clear()
    APGD(LINF, steps=3, progress=shares.append)(small_net(), X, (predicted(small_net()) + 1) % CLASSES, seed=0)
    assert shares == [1]  # misclassified inputs leave nothing to do


@pytest.mark.parametrize(
    "attack",
    [CW(LINF, steps=3, search_steps=2, first_c=1.0), Transfer(net(), Transfer(net(), PGD(LINF, steps=3)))],
    ids=lambda attack: type(attack).__name__,
)
def test_an_evaluation_shows_the_share_of_each_batch(
    attack: Attack, often: None, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = evaluate(net(), digits(), {"it": attack}, samples=1, seeds=2, label="plain", progress=True)
    lines = capsys.readouterr().err.splitlines()
    for seed in (0, 1):
        start = f"plain: it: 0 of 1 batches, seed {seed}, "
        shares = [int(line.removeprefix(start).removesuffix("%")) for line in lines if line.startswith(start)]
        assert shares == sorted(shares) and shares[-1] == 100
        assert any(0 < share < 100 for share in shares)
    assert evaluate(net(), digits(), {"it": attack}, samples=1, seeds=2, label="plain") == shown
    assert capsys.readouterr().err == ""


def test_an_attack_keeps_a_progress_of_its_own_in_an_evaluation() -> None:
    own: list[float] = []
    evaluate(net(), digits(), PGD(LINF, steps=2, progress=own.append), samples=1, seeds=1, progress=True)
    assert own == [0.5, 1]
