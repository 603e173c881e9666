"""Progress of long work with the time that is left: a live bar on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Report(Protocol):
    """Told how much is done, of how much (None while that is not known), and what is under way."""

    def __call__(self, done: int, total: int | None, doing: str = "") -> None: ...


SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(description: str, unit: str) -> Iterator[Report]:
    """Shows on stderr what the report is told; `unit` is "bytes" or the plural of what is counted."""
    if not sys.stderr.isatty():
        yield _lines(description, unit)
        return
    import rich.console
    import rich.progress

    counted = rich.progress.DownloadColumn() if unit == "bytes" else rich.progress.MofNCompleteColumn()
    with rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        counted,
        rich.progress.TimeRemainingColumn(),
        console=rich.console.Console(stderr=True),
    ) as shown:
        task = shown.add_task(description, total=None)

        def report(done: int, total: int | None, doing: str = "") -> None:
            shown.update(task, completed=done, total=total, description=", ".join(filter(None, [description, doing])))

        yield report


def _lines(description: str, unit: str) -> Report:
    started = last = time.monotonic()
    begun: int | None = None  # a resumed download does not begin at 0, and what was there took no time

    def report(done: int, total: int | None, doing: str = "") -> None:
        nonlocal last, begun
        now = time.monotonic()
        begun = done if begun is None else begun
        if now - last < SECONDS_BETWEEN_LINES:
            return
        last = now
        of_total = f" of {total}" if total else ""
        gained = done - begun
        left = f", {(now - started) * (total - done) / gained:.0f} s left" if total and gained > 0 else ""
        now_at = f", now at {doing}" if doing else ""
        print(f"{description}: {done}{of_total} {unit}{left}{now_at}", file=sys.stderr, flush=True)

    return report
