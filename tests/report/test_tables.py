import pytest

from advbnn.report.tables import NOTHING, Cell, Table, percent_at_most, percent_range, with_error

ROWS = [
    [Cell("a"), Cell("PGD", strong=True), Cell("45.4", "[43.1, 47.9]")],
    [Cell("a"), Cell("x|y"), NOTHING],
    [Cell("b"), Cell("PGD"), Cell("1,200")],
]
TABLE = Table(name="t", caption="What it shows.", columns=["model", "attack", "accuracy"], rows=ROWS)


def test_markdown() -> None:
    assert TABLE.markdown().splitlines() == [
        "| model | attack | accuracy |",
        "| :-- | :-- | --: |",
        "| a | **PGD** | 45.4 [43.1, 47.9] |",
        r"| a | x\|y | - |",
        "| b | PGD | 1,200 |",
        "",
        "What it shows.",
    ]


def test_neighbours_with_the_same_heading_are_a_group() -> None:
    assert [(head.text, len(rows)) for head, rows in TABLE.groups] == [("a", 2), ("b", 1)]


@pytest.mark.parametrize(
    ("text", "numeric"),
    [
        ("12", True),
        ("-0.5", True),
        ("[0.1, 2.0]", True),
        ("0.5 %", True),
        ("-", True),
        ("linf 0.1", False),
        ("4 of 5", False),
    ],
)
def test_numbers_are_recognised(text: str, numeric: bool) -> None:
    assert Table(name="t", caption="", columns=["x"], rows=[[Cell(text)]]).numeric == [numeric]


def test_refuses_rows_of_another_length() -> None:
    with pytest.raises(ValueError, match="table 't' has 2 columns and a row of 1 cells"):
        Table(name="t", caption="", columns=["a", "b"], rows=[[Cell("1")]])


def test_numbers_are_rounded_the_same_everywhere() -> None:
    assert percent_range(0.12345, 1) == "[12.3, 100.0]"
    assert with_error(1 / 3, 0.0126) == Cell("0.333", "\u00b1 0.013")


@pytest.mark.parametrize(
    ("share", "shown"), [(0.0, "0.0"), (0.065, "6.5"), (0.0654, "6.6"), (0.00004, "0.1"), (0.07, "7.0"), (1.0, "100.0")]
)
def test_what_must_not_look_smaller_is_rounded_up(share: float, shown: str) -> None:
    assert percent_at_most(share) == shown
