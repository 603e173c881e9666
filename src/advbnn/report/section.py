"""What a report is made of: sections of words, figures and tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from advbnn.report.tables import Table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot, and the same for those who do not see it.

    Attributes:
        name: unique in the report.
        caption: what it shows.
        alt: what there is to be seen on it, in a sentence or two.
        draw: makes the SVG; only a page needs it.
        numbers: the numbers that it is drawn from.
        small: drawn for half the width of the others.
    """

    name: str
    caption: str
    alt: str
    draw: Callable[[], str]
    numbers: Table | None = None
    small: bool = False


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something that a reader must know.

    Attributes:
        title: what it is about.
        words: what was seen.
        advice: what follows from it.
        alarming: whether it calls a result into question.
    """

    title: str
    words: str
    advice: str = ""
    alarming: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report.

    Attributes:
        name: unique in the report; the address within the page.
        title: its heading.
        words: how to read it, one paragraph each.
        notices: what must not be overlooked.
        figures: its plots.
        tables: its tables, open to the eye.
        folded: tables that open on demand.
        after: what is to be known besides, one paragraph each.
    """

    name: str
    title: str
    words: Sequence[str] = ()
    notices: Sequence[Notice] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()
    after: Sequence[str] = ()
