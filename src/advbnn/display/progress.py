"""One progress bar for data, attacks, evaluation and training, on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from advbnn.display import notebook

SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_REDRAWS = 0.2  # of a bar in a notebook


class ProgressBar:
    """A live bar with the time left on a terminal and in a notebook; elsewhere a plain line every ten seconds.

    If stderr cannot be written any more, such as a closed pipe, nothing more is shown and `broken` is True.

    Used as a context manager: `with ProgressBar("cifar10", "images") as bar: bar.update(done, total)`.

    Args:
        description: what is in progress; None shows nothing.
        unit: "bytes" or the plural of what is counted; empty shows a percentage.
    """

    def __init__(self, description: str | None, unit: str = "") -> None:
        self.description, self.unit, self._note = description, unit, ""
        self._bar: Any = None
        self._display: Any = None
        self.broken = False
        self._first: int | float | None = None  # resumed work does not start at 0, and the rest of it took no time

    def __enter__(self) -> "ProgressBar":
        self._started = self._last_line = time.monotonic()
        self._redrawn = float("-inf")
        if self.description is None:
            return self
        self._display = notebook.live_display()
        if self._display is None and sys.stderr is not None and sys.stderr.isatty():
            self._bar = _rich_bar(self.unit)
            self._task = self._bar.add_task(self.description, total=None, note="")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            with self._noticing():
                self._bar.stop()

    def update(
        self, done: int | float, total: int | float | None, note: str | None = None, description: str | None = None
    ) -> None:
        """Shows how much is done, of how much if that is known; note and description stay as they are if None."""
        if self.description is None or self.broken:
            return
        self.description = description or self.description
        self._note = self._note if note is None else note
        if self._bar is not None:
            shown = {"completed": done, "total": total, "description": self.description, "note": self._note}
            with self._noticing():
                self._bar.update(self._task, **shown)
            return
        now = time.monotonic()
        self._first = done if self._first is None else self._first
        if self._display is not None:
            if now - self._redrawn >= _SECONDS_BETWEEN_REDRAWS or done == total:
                self._redrawn = now
                self._display.update(notebook.bar(self._words(now, done, total), done, total), raw=True)
            return
        if now - self._last_line >= SECONDS_BETWEEN_LINES or (done == total and self._note):
            self._last_line = now
            self.print(self._words(now, done, total))

    def print(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self.description is None or self.broken or sys.stderr is None:
            return
        with self._noticing():
            if self._bar is not None:
                self._bar.console.print(text)
            else:
                print(text, file=sys.stderr, flush=True)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.broken = True

    def _words(self, now: float, done: float, total: float | None) -> str:
        return ", ".join(filter(None, [self._line(done, total), self._left(now, done, total), self._note]))

    def _line(self, done: float, total: float | None) -> str:
        if not self.unit:
            return f"{self.description}: {done / total:.0%}" if total else f"{self.description}"
        return f"{self.description}: {int(done)}{f' of {total}' if total else ''} {self.unit}"

    def _left(self, now: float, done: float, total: float | None) -> str:
        if not total or self._first is None or done <= self._first:
            return ""
        return f"{duration((now - self._started) / (done - self._first) * (total - done))} left"


def duration(seconds: float) -> str:
    """A time as hours, minutes and seconds: `"0:01:30"`."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _rich_bar(unit: str) -> Any:
    from rich import progress
    from rich.console import Console
    from rich.table import Column

    counts = {"": progress.TaskProgressColumn, "bytes": progress.DownloadColumn}
    # everything fits 80 columns; on fewer the note is cut, not the time left
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),  # names of runs may have brackets
        progress.BarColumn(bar_width=10),
        counts.get(unit, progress.MofNCompleteColumn)(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        console=Console(stderr=True, markup=False, highlight=False),
        expand=True,
    )


Listener = Callable[[float], None]
"""Is called with the finished share of an attack, from 0 to 1."""


@contextmanager
def reporting(progress: bool | Listener, attack: object) -> Iterator[Listener]:
    """Yields the function that an attack calls with its finished share.

    It shows a bar named after the attack if `progress` is True, and otherwise calls `progress`, if that is a function.
    """
    with ProgressBar(type(attack).__name__ if progress is True else None) as bar:
        listener = (lambda share: bar.update(share, 1)) if progress is True else progress or None
        reached = 0.0

        def report(share: float) -> None:
            nonlocal reached
            if listener is not None and share > reached:  # lower when a batch is repeated in smaller parts
                reached = share
                listener(share)

        yield report
