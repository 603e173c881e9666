"""Tables that can be read as HTML and as markdown."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from advbnn.errors import ArgumentError


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Attributes:
        text: what it says.
        note: what belongs to it and matters less, such as an interval.
        heat: how strongly it is coloured, in [0, 1]; None for not at all.
        strong: whether it is to be seen first.
    """

    text: str
    note: str = ""
    heat: float | None = None
    strong: bool = False


_NUMBER = re.compile(r"[\[+-]?\d[^a-zA-Z]*$")

PLUS_MINUS = "\u00b1"

NOTHING = Cell("-")
"""What was not measured."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells under headings. The first cell of a row is its heading.

    Attributes:
        name: identifies it among the tables of a report.
        caption: what its numbers are.
        columns: the headings.
        rows: the cells, as many in each row as there are columns.
    """

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ArgumentError(
                    f"table {self.name!r} has {len(self.columns)} columns and a row of {len(row)} cells"
                )

    @property
    def groups(self) -> list[tuple[Cell, list[Sequence[Cell]]]]:
        """Rows that follow each other with the same heading, under that heading."""
        return [(rows[0][0], rows) for rows in (list(found) for _, found in groupby(self.rows, lambda row: row[0]))]

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers, to be set flush right."""
        return [
            all(_NUMBER.match(row[index].text) or row[index] == NOTHING for row in self.rows)
            for index in range(len(self.columns))
        ]

    def markdown(self) -> str:
        """The table and its caption as GitHub's markdown."""
        rule = ["--:" if numeric else ":--" for numeric in self.numeric]
        lines = [_line(self.columns), _line(rule), *(_line([_markdown(cell) for cell in row]) for row in self.rows)]
        return "\n".join([*lines, "", self.caption]) + "\n"


def with_error(value: float, error: float) -> Cell:
    """A number and its error, both to three places."""
    return Cell(f"{value:.3f}", f"{PLUS_MINUS} {error:.3f}")


def percent(share: float) -> str:
    """A share in percent, to one place."""
    return f"{100 * share:.1f}"


def percent_at_most(share: float) -> str:
    """A share in percent, to one place and rounded up, for what must not look smaller than it is."""
    return f"{math.ceil(round(1000 * share, 6)) / 10:.1f}"


def percent_range(low: float, high: float) -> str:
    """An interval of shares in percent."""
    return f"[{percent(low)}, {percent(high)}]"


def _markdown(cell: Cell) -> str:
    text = _escaped(cell.text)
    text = f"**{text}**" if cell.strong else text
    return f"{text} {_escaped(cell.note)}" if cell.note else text


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")
