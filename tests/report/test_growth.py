"""The worst case of two kinds of networks against a growing number."""

from pathlib import Path

import pytest
import torch

import made_up_records as made_up
from advbnn.attacks.threat import Threat
from advbnn.evaluation.intervals import paired_interval
from advbnn.evaluation.outcomes import pack
from advbnn.evaluation.records import Records
from advbnn.report import growth
from advbnn.report.plots import Panel

TITLES = ("alone", "modes")


def right(count: int) -> torch.Tensor:
    return torch.arange(made_up.N) < count


def judged(label: str, count: int, *radii: float) -> Records:
    found = {"seeds": (0,), "correct": (count,), "outcomes": (pack(right(count).int(), 1),)}
    worst = {"kind": "worst_case", "name": "quick", **found}
    return Records(made_up.record(label, None, threat=Threat("linf", eps), **worst) for eps in radii)


def test_a_panel_for_each_radius_that_all_have_with_paired_bands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: list[Panel] = []
    monkeypatch.setattr(growth, "lines_file", lambda path, panels, legend, span: drawn.extend(panels))
    one = judged("x", 100, 0.1, 0.5, 1.0)
    alone, several = {1: one, 3: judged("y", 120, 0.5, 1.0)}, {1: one, 3: judged("z", 150, 0.1, 0.5, 1.0)}
    growth.growth_png(tmp_path / "x.png", alone, several, titles=TITLES)
    assert [panel.title.split()[-1] for panel in drawn] == ["0.5", "1"]
    for panel in drawn:
        first, second = panel.lines
        assert list(first.x) == list(second.x) == [1, 3]
        assert list(first.y) == pytest.approx([10_000 / made_up.N, 12_000 / made_up.N])
        assert list(second.y) == pytest.approx([10_000 / made_up.N, 15_000 / made_up.N])
        assert second.low is not None and second.high is not None
        assert second.low[0] == second.high[0] == first.y[0]  # the same network
        band = [first.y[1] + 100 * end for end in paired_interval(right(150).double(), right(120).double())]
        assert [second.low[1], second.high[1]] == pytest.approx(band)


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    alone, several = ({n: judged(label, 100 + n, 0.5) for n in (1, 3)} for label in TITLES)
    for name in ("x", "y"):
        growth.growth_png(tmp_path / f"{name}.png", alone, several, titles=TITLES)
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "y.png").read_bytes()
