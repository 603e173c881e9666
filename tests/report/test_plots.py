"""Plots for the page and as files."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageChops

from advbnn.report import plots
from advbnn.report.canvas import svg_panels
from advbnn.report.style import looks

LOOKS = list(looks(["none", "adv_bnn"]).values())
BARS = [
    plots.Bar(look=look, label=look.title, length=3, error=0.5, mark=2, pale=i == 0) for i, look in enumerate(LOOKS)
]


def panel(log: bool = False) -> plots.Panel:
    drawn = [
        plots.Line(look=look, x=[1, 5, 30], y=[90, 50, i], low=[85, 45, 0], high=[95, 55, 9])
        for i, look in enumerate(LOOKS)
    ]
    drawn.append(plots.Line(look=LOOKS[0], x=[1, 30], y=[80, 3], style="dashed"))
    return plots.Panel(lines=drawn, x_label="radius", title="A panel", log=log)


def lines(name: str = "p", log: bool = False) -> str:
    return plots.lines_svg(name, panel(log), y_label="accuracy, %", top=100)


def reliability(name: str = "p") -> str:
    dots = plots.Dots(x=[20, 80], y=[10, 70], share=[0.1, 0.9])
    return plots.reliability_svg(name, LOOKS[0], [dots, plots.Dots(x=[50], y=[20], share=[1.0], hollow=True)])


def bars(name: str = "p") -> str:
    return plots.bars_svg(name, BARS, x_label="increase")


@pytest.mark.parametrize("draw", [lines, reliability, bars])
def test_svg_fits_into_a_page(draw: Callable[[str], str]) -> None:
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
    assert {one or other for one, other in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', drawing)} <= set(names)
    following = re.findall(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", drawing)
    assert len(following) == len(re.findall(r"#[0-9a-f]{6}\b", drawing)) > 0  # all colours follow the page


def test_lines_are_named_once_at_their_ends() -> None:
    named = re.findall(r">(No defence|Adv-BNN|radius|accuracy, %)</text>", lines(log=True))
    assert sorted(named) == ["Adv-BNN", "No defence", "accuracy, %", "radius"]


@pytest.mark.parametrize(
    ("other", "dashed"),
    [
        ((99, 60, 40, 0), True),
        ((99, 60.5, 40, 0), True),
        ((93, 60, 40, 0), True),  # all but the first place
        ((99, 80, 60, 0), False),  # the same ends
        ((80, 70, 60, 50), False),
    ],
)
def test_a_line_on_top_of_another_lets_it_be_seen(other: tuple[float, ...], dashed: bool) -> None:
    values = ((99, 60, 40, 0), other)
    both = [plots.Line(look=look, x=range(4), y=y) for look, y in zip(LOOKS, values, strict=True)]
    drawn = plots.lines_svg("p", plots.Panel(lines=both, x_label="radius"), y_label="", top=100)
    assert ("stroke-dasharray" in drawn) == dashed


def test_a_single_place_is_read_on_an_axis_from_zero() -> None:
    """Automatic limits close to the place would give ticks of many digits, one over the other."""
    with svg_panels(1, 480, 330) as (_, (axes,)):
        line = plots.Line(look=LOOKS[0], x=[0.15], y=[53], low=[43], high=[64], style="points")
        plots._draw(axes, plots.Panel(lines=[line], x_label="radius"))
        low, high = axes.get_xlim()
    assert low < 0 < 0.15 < high < 0.2


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: plots.lines_file(path, [panel(), panel(log=True)], [plots.Line(look=look) for look in LOOKS]),
        lambda path: plots.bars_png(path, BARS, title="t", x_label="x", mark="m"),
        lambda path: plots.heat_map_png(path, "ab", [[1.0, None], [0.2, 1.0]], title="t", x_label="x", y_label="y"),
    ],
)
def test_files_use_their_whole_area_and_are_reproducible(tmp_path: Path, draw: Callable[[Path], None]) -> None:
    for name in ("one.png", "two.png"):
        draw(tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    with Image.open(tmp_path / "one.png") as image:
        ground = Image.new("RGB", image.size, (253, 252, 250))
        left, top, right, bottom = ImageChops.difference(image.convert("RGB"), ground).getbbox()
        assert left < 0.05 * image.width and right > 0.95 * image.width
        assert top < 0.05 * image.height and bottom > 0.95 * image.height


@given(st.lists(st.floats(-20, 120), min_size=1, max_size=12))
def test_labels_are_spread_out_in_order_and_in_bounds(values: list[float]) -> None:
    places = plots.spread_out(values, gap=6, low=0, high=100)
    assert all(-1e-9 <= place <= 100 + 1e-9 for place in places)
    ordered = sorted(zip(values, places, strict=True))
    for (_, lower), (_, upper) in itertools.pairwise(ordered):
        assert upper - lower >= 6 - 1e-6


def test_labels_with_enough_room_stay_in_place() -> None:
    assert plots.spread_out([50, 10, 30], gap=6, low=0, high=100) == [50, 10, 30]
