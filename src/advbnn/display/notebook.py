"""What notebooks show: tables as HTML, and a display that is updated in place."""

import html
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

MOST_ROWS = 20
"""Rows of a table that a notebook shows; the rest is counted."""


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]], total: int | None = None) -> str:
    """A table in HTML, with at most `MOST_ROWS` rows of the `total`; everything in it is plain text."""
    shown = list(islice(rows, MOST_ROWS))
    left = (len(shown) if total is None else total) - len(shown)
    lines = [f"<caption>{html.escape(caption)}</caption>", f"<thead>{_row('th', columns)}</thead>"]
    lines += [f"<tbody>{''.join(_row('td', row) for row in shown)}</tbody>"]
    lines += [f'<tfoot><tr><td colspan="{len(columns)}">and {left:,} more</td></tr></tfoot>'] if left > 0 else []
    return f"<table>{''.join(lines)}</table>"


def live_display() -> Any:
    """A handle whose `update({"text/html": ...}, raw=True)` redraws one output; None outside of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):  # a terminal has a shell without a kernel
        return None
    from importlib import import_module

    return import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)


def bar(text: str, done: float, total: float | None) -> dict[str, str]:
    """A progress bar, and the same as text, for `live_display`."""
    filled = f' value="{done / total:.4f}"' if total else ""
    return {"text/plain": text, "text/html": f'<progress max="1"{filled}></progress> {html.escape(text)}'}


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
