"""The worst case against the accuracy without an attack."""

from pathlib import Path

import pytest

import made_up_records as made_up
from advbnn.attacks.threat import Threat
from advbnn.evaluation.records import Records
from advbnn.report import tradeoff
from advbnn.report.plots import Panel


def judged(label: str, clean: int, **worst: int) -> Records:
    """Records of a network: right on so many images without an attack, and in the worst case at 0.5 and 1.0."""
    records = [made_up.record(label, None, seeds=(0,), correct=(clean,))]
    for name, count in worst.items():
        known = {"kind": "worst_case", "name": "quick", "threat": Threat("linf", {"half": 0.5, "one": 1.0}[name])}
        records.append(made_up.record(label, None, **known, seeds=(0,), correct=(count,)))
    return Records(records)


NETWORKS = {
    "one network": {"8": judged("a", 160, half=60, one=20), "12": judged("b", 140, half=70, one=30)},
    "modes": {"8": judged("c", 150, half=80), "12": judged("d", 130, half=90)},
}


def test_points_of_each_kind_at_the_radii_that_all_have(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[Panel] = []
    monkeypatch.setattr(tradeoff, "lines_file", lambda path, panels, legend, span: drawn.extend(panels))
    tradeoff.tradeoff_png(tmp_path / "x.png", NETWORKS)
    (panel,) = drawn
    assert panel.title.endswith(" 0.5")
    one, modes = panel.lines
    assert list(one.names) == list(modes.names) == ["8", "12"]
    for line, clean, worst in ((one, (160, 140), (60, 70)), (modes, (150, 130), (80, 90))):
        assert list(line.x) == pytest.approx([100 * count / made_up.N for count in clean])
        assert list(line.y) == pytest.approx([100 * count / made_up.N for count in worst])


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("x", "y"):
        tradeoff.tradeoff_png(tmp_path / f"{name}.png", NETWORKS)
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "y.png").read_bytes()
