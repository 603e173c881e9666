"""Tables and their markdown."""

from advbnn.report.elements import NOTHING, Cell, Table, escaped, percent_at_most, percent_range, with_error

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


def test_csv_and_latex() -> None:
    table = Table(
        name="t", caption="10 %", columns=["a_b", "points"], rows=[[Cell("x, y"), Cell("-1", "[2]", strong=True)]]
    )
    assert table.csv() == 'a_b,points\n"x, y",-1 [2]\n'
    assert table.latex().splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{10 \%}\label{tab:t}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"a\_b & points \\",
        r"\midrule",
        r"x, y & \textbf{-1} [2] \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    assert r"100 \% \& \textbackslash{}" in Table(name="t", caption="", columns=["100 % & \\"], rows=[]).latex()


def test_plain_text_stays_plain_in_markdown() -> None:
    for text, expected in {
        "<script>": "&lt;script>",
        "&lt;": "&amp;lt;",
        "a & b": "a & b",
        "**x** `y` _z_ ~~w~~": r"\*\*x\*\* \`y\` \_z\_ \~\~w\~\~",
        "[a](http://x)": r"[a]\(http://x)",
        "![a][b]": r"![a]\[b]",
        "adv_bnn, [1.0, 2.0]": "adv_bnn, [1.0, 2.0]",
        "# x": r"\# x",
    }.items():
        assert escaped(text) == expected
    assert Table(name="t", caption="<b>", columns=["<i>"], rows=[[Cell("<a|b>")]]).markdown().count("<") == 0


def test_rows_with_the_same_heading_are_a_group() -> None:
    assert [(head.text, len(rows)) for head, rows in TABLE.groups] == [("a", 2), ("b", 1)]


def test_columns_of_numbers_are_recognised() -> None:
    row = [Cell(text) for text in ("12", "-0.5", "[0.1, 2.0]", "0.5 %", "-", "linf 0.1", "4 of 5")]
    assert Table(name="t", caption="", columns=list("abcdefg"), rows=[row]).numeric == [True] * 5 + [False] * 2


def test_numbers_are_rounded_alike_and_upper_bounds_are_rounded_up() -> None:
    assert percent_range(0.12345, 1) == "[12.3, 100.0]"
    assert with_error(1 / 3, 0.0126) == Cell("0.333", "\u00b1 0.013")
    shares = {0.0: "0.0", 0.065: "6.5", 0.0654: "6.6", 0.00004: "0.1", 0.07: "7.0", 1.0: "100.0"}
    assert {share: percent_at_most(share) for share in shares} == shares
