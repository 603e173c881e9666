from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from advbnn.report.dumbbells import LOOKS, Dumbbell, dumbbells_png, dumbbells_svg, lifts

ROWS = [
    Dumbbell(
        name="kept $5", claimed=60.0, audited=58.0, interval=(55.0, 61.0), baseline=50.0, difference="+8.0", clear=True
    ),
    Dumbbell(name="lost", claimed=80.0, audited=20.0, interval=(18.0, 22.0), baseline=50.0),
    Dumbbell(name="unknown", claimed=85.0),
    Dumbbell(name="no claim", protocol=70.0, audited=0.0, interval=(0.0, 0.4)),
]


@pytest.mark.parametrize("narrow", [False, True])
def test_one_line_per_defence_in_colours_of_the_page(narrow: bool) -> None:
    drawing = dumbbells_svg("figure", ROWS, narrow)
    for row in ROWS:
        assert row.name in drawing
    assert drawing.count("not audited yet") == 1
    assert all(f"var({look.variable}" in drawing for look in LOOKS)
    assert "+8.0" in drawing
    assert 'id="figure-' in drawing and dumbbells_svg("figure", ROWS, narrow) == drawing


def test_no_mark_covers_another() -> None:
    apart = Dumbbell(name="apart", claimed=80.0, protocol=60.0, audited=20.0)
    assert lifts(apart) == {"claimed": 0, "protocol": 0, "audited": 0}
    assert lifts(Dumbbell(name="claim", claimed=80.0)) == {"claimed": 0}
    assert sorted(lifts(Dumbbell(name="all", claimed=0.0, protocol=0.0, audited=0.0)).values()) == [-1, 0, 1]
    one = lifts(Dumbbell(name="two", claimed=50.0, protocol=1.0, audited=0.0))
    assert one["protocol"] != one["audited"] == one["claimed"] == 0


def test_the_same_as_a_file(tmp_path: Path) -> None:
    dumbbells_png(tmp_path / "figure.png", ROWS)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
