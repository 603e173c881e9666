"""What a report consists of: sections of text, figures and tables, whatever they are rendered as."""

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from advbnn.report.style import Look

if TYPE_CHECKING:
    from advbnn.report.picture import Picture

PLUS_MINUS = "\u00b1"

# not the underscore within a word and the bracket without a link, which have no meaning in GitHub's markdown
_MARKS = re.compile(r"[\\`*~]|(?<!\w)_|_(?!\w)|(?<=\])[\[(]|(?m:^[#>+-])(?=\s)")
_NUMBER = re.compile(r"[\[+-]?\d[^a-zA-Z]*$")


@dataclass(frozen=True)
class Cell:
    """One entry of a table, with a note such as an interval, and `heat` in [0, 1] as the strength of its colour."""

    text: str
    note: str = ""
    heat: float | None = None
    strong: bool = False


NOTHING = Cell("-")
"""What was not measured."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells under the headings of the columns. The first cell of a row is its heading."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def groups(self) -> list[tuple[Cell, list[Sequence[Cell]]]]:
        """Consecutive rows with the same heading, under that heading."""
        return [(rows[0][0], rows) for rows in (list(found) for _, found in groupby(self.rows, lambda row: row[0]))]

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers, to be right-aligned."""
        columns = ([row[index] for row in self.rows] for index in range(len(self.columns)))
        return [all(_NUMBER.match(cell.text) or cell == NOTHING for cell in column) for column in columns]

    def markdown(self) -> str:
        """The table and its caption in GitHub's markdown."""
        rule = ["--:" if numeric else ":--" for numeric in self.numeric]
        headings = [_in_table(name) for name in self.columns]
        lines = [_line(headings), _line(rule), *(_line([_markdown(cell) for cell in row]) for row in self.rows)]
        return "\n".join([*lines, "", escaped(self.caption)]) + "\n"

    def csv(self) -> str:
        """The table as comma-separated text with a header; notes follow their number."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([f"{cell.text} {cell.note}".rstrip() for cell in row] for row in self.rows)
        return text.getvalue()

    def latex(self) -> str:
        """The table with its caption for LaTeX, with the rules of the package booktabs."""
        align = "".join("r" if numeric else "l" for numeric in self.numeric)
        lines = [" & ".join(map(_latex, self.columns)), *(" & ".join(_latex_cell(c) for c in row) for row in self.rows)]
        head, *body = (f"{line} \\\\" for line in lines)
        rows = ["\\toprule", head, "\\midrule", *body, "\\bottomrule"]
        caption = f"\\caption{{{_latex(' '.join(self.caption.split()))}}}\\label{{tab:{self.name}}}"
        inner = [f"\\begin{{tabular}}{{{align}}}", *rows, "\\end{tabular}"]
        return "\n".join(["\\begin{table}", "\\centering", caption, *inner, "\\end{table}"]) + "\n"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot: `draw` makes the SVG, `alt` describes it for screen readers, `numbers` is the table behind it."""

    name: str
    caption: str
    alt: str
    draw: Callable[[], str]
    numbers: Table | None = None
    small: bool = False
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something that a reader must know; alarming if it calls a result into question."""

    title: str
    words: str
    advice: str = ""
    alarming: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report, with paragraphs before and `after`; `name` is its anchor, `folded` are collapsed tables."""

    name: str
    title: str
    words: Sequence[str] = ()
    notices: Sequence[Notice] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()
    after: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything in a report: `looks` are the models in order, `commands` make the records again.

    `pictures` are those of the first section, to be written as files.
    """

    title: str
    looks: Mapping[str, Look]
    sections: Sequence[Section]
    provenance: Sequence[Table]
    commands: Sequence[str]
    pictures: tuple["Picture", ...] = ()

    def tables(self) -> dict[str, Table]:
        """Every table of measurements by name, including those behind figures."""
        found: dict[str, Table] = {}
        for section in self.sections:
            behind = [figure.numbers for figure in section.figures if figure.numbers]
            found |= {table.name: table for table in (*section.tables, *section.folded, *behind)}
        return found


def with_error(value: float, error: float) -> Cell:
    """A number and its error, to three decimals."""
    return Cell(f"{value:.3f}", f"{PLUS_MINUS} {error:.3f}")


def percent(share: float) -> str:
    """A share in percent, to one decimal."""
    return f"{100 * share:.1f}"


def percent_at_most(share: float) -> str:
    """A share in percent, rounded up to one decimal, for upper bounds."""
    return f"{math.ceil(round(1000 * share, 6)) / 10:.1f}"


def percent_range(low: float, high: float) -> str:
    """An interval of shares in percent."""
    return f"[{percent(low)}, {percent(high)}]"


def escaped(text: str) -> str:
    """Plain text for a markdown file: neither HTML nor markdown in it, such as in a label, has an effect."""
    text = re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;")
    return _MARKS.sub(r"\\\g<0>", text)


def _in_table(text: str) -> str:
    return escaped(text).replace("|", r"\|").replace("\n", " ")


def _markdown(cell: Cell) -> str:
    text, note = _in_table(cell.text), _in_table(cell.note)
    return f"{f'**{text}**' if cell.strong else text} {note}".rstrip()


def _latex_cell(cell: Cell) -> str:
    text = rf"\textbf{{{_latex(cell.text)}}}" if cell.strong else _latex(cell.text)
    return f"{text} {_latex(cell.note)}".rstrip()


def _latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", PLUS_MINUS: r"$\pm$"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
