import itertools
import re
from collections.abc import Callable

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advbnn.report import plots
from advbnn.report.style import looks

LOOKS = list(looks(["none", "adv_bnn"]).values())


def lines(name: str = "p", log: bool = False) -> str:
    drawn = [
        plots.Line(look=look, x=[1, 5, 30], y=[90, 50, i], low=[85, 45, 0], high=[95, 55, 9])
        for i, look in enumerate(LOOKS)
    ]
    drawn.append(plots.Line(look=LOOKS[0], x=[1, 30], y=[80, 3], dashed=True))
    return plots.lines(name, drawn, x_label="radius", y_label="accuracy, %", top=100, log=log)


def reliability(name: str = "p") -> str:
    dots = plots.Dots(x=[20, 80], y=[10, 70], share=[0.1, 0.9])
    return plots.reliability(name, LOOKS[0], [dots, plots.Dots(x=[50], y=[20], share=[1.0], hollow=True)])


def bars(name: str = "p") -> str:
    drawn = [
        plots.Bar(look=look, label=look.title, length=3, error=0.5, mark=2, pale=i == 0) for i, look in enumerate(LOOKS)
    ]
    return plots.bars(name, drawn, x_label="growth")


@pytest.mark.parametrize("draw", [lines, reliability, bars])
def test_drawings_fit_into_a_page(draw: Callable[[str], str]) -> None:
    before = dict(matplotlib.rcParams)
    drawing = draw("one")
    assert drawing == draw("one")
    assert dict(matplotlib.rcParams) == before
    assert re.match(r'<svg viewBox="0 0 [\d.]+ [\d.]+" aria-hidden="true" focusable="false">', drawing)
    assert "<style" not in drawing
    assert "http" not in drawing
    names = re.findall(r'\bid="([^"]+)"', drawing)
    assert len(set(names)) == len(names)
    assert all(name.startswith("one-") for name in names)
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', drawing)) <= {(n, "") for n in names} | {
        ("", n) for n in names
    }


@pytest.mark.parametrize("draw", [lines, reliability, bars])
def test_all_colours_follow_the_page(draw: Callable[[str], str]) -> None:
    drawing = draw("p")
    following = re.findall(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", drawing)
    assert len(following) == len(re.findall(r"#[0-9a-f]{6}\b", drawing)) > 0


def test_lines_are_named_in_words_at_their_ends() -> None:
    for drawing in (lines(), lines(log=True)):
        assert re.findall(r">(No defence|Adv-BNN|radius|accuracy, %)</text>", drawing).count("Adv-BNN") == 1
        assert ">No defence</text>" in drawing


@given(st.lists(st.floats(-20, 120), min_size=1, max_size=12))
def test_labels_are_spread_out_in_order_and_in_bounds(values: list[float]) -> None:
    places = plots.spread_out(values, gap=6, low=0, high=100)
    assert all(-1e-9 <= place <= 100 + 1e-9 for place in places)
    ordered = sorted(zip(values, places, strict=True))
    for (_, lower), (_, upper) in itertools.pairwise(ordered):
        assert upper - lower >= 6 - 1e-6


def test_labels_with_room_stay_where_they_are() -> None:
    assert plots.spread_out([50, 10, 30], gap=6, low=0, high=100) == [50, 10, 30]
    assert plots.spread_out([1.0, 1.0, 1.0], gap=60, low=0, high=100) == pytest.approx([1, 50.5, 100], abs=1)
