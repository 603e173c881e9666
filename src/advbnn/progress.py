"""Progress of long work with the time left: a live bar on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

SECONDS_BETWEEN_LINES = 10.0


class Report(Protocol):
    """Told how much is done, of how much (None while that is not known), and what is under way."""

    def __call__(self, done: int, total: int | None, doing: str = "") -> None: ...


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


Told = Callable[[float], None]
Progress = bool | Told

_listener: ContextVar[Told | None] = ContextVar("listener", default=None)


@contextmanager
def listening(told: Told) -> Iterator[None]:
    """Within the block every attack that has no `progress` of its own tells `told` which share of it is done."""
    token = _listener.set(told)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def reporting(progress: Progress, attack: object) -> Iterator[Told]:
    """What an attack tells its share to, which rises, whatever part of the work is done again."""
    if callable(progress):
        yield _rising(progress)
    elif progress:
        from rich.progress import Progress as Bar

        with Bar() as bar:
            task = bar.add_task(type(attack).__name__, total=1.0)
            yield lambda share: bar.update(task, completed=share)
    else:
        listener = _listener.get()
        yield _rising(listener) if listener is not None else lambda share: None


def _rising(told: Told) -> Told:
    reached = 0.0

    def tell(share: float) -> None:
        nonlocal reached
        if share > reached:
            reached = share
            told(share)

    return tell


def describe(metrics: Mapping[str, Any]) -> str:
    """All metrics in a line for people."""
    parts = [brief(metrics), f"nll {metrics['nll']:.4g}"]
    if metrics["kl"]:
        parts.append(f"kl {metrics['kl']:.4g} (x {metrics['kl_weight']:.3g})")
    return ", ".join([*parts, f"{metrics['examples_per_second']:,.0f} examples/s"])


def brief(metrics: Mapping[str, Any]) -> str:
    """Those that fit a terminal, with the time that is left."""
    parts = []
    for name in ("clean_accuracy", "robust_accuracy", "validation_accuracy"):
        if name in metrics:
            parts.append(f"{name.removesuffix('_accuracy')} {100 * metrics[name]:.1f} %")
    for name in ("clean_mse", "robust_mse", "validation_mse"):
        if name in metrics:
            parts.append(f"{name.replace('_', ' ')} {metrics[name]:.4g}")
    return ", ".join([*parts, f"loss {metrics['loss']:.4g}"])


class Display:
    """Shows metrics on stderr while a run goes on.

    Args:
        steps: the length of the run.
        epochs: its epochs.
    """

    def __init__(self, steps: int, epochs: int) -> None:
        self.steps, self.epochs = steps, epochs
        self._bar: Any = None
        self._begun: tuple[float, int] | None = None
        self._last_line = time.monotonic()

    def __enter__(self) -> "Display":
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task("starting", total=self.steps, metrics="")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, done: int, epoch: int) -> None:
        """A step is done."""
        if self._begun is None:
            self._begun = (time.monotonic(), done)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=f"epoch {epoch + 1}/{self.epochs}")

    def metrics(self, metrics: Mapping[str, Any]) -> None:
        """New values are known."""
        if self._bar is not None:
            self._bar.update(self._task, metrics=brief(metrics))
            return
        now, done = time.monotonic(), metrics["step"]
        if now - self._last_line < SECONDS_BETWEEN_LINES and done < self.steps:
            return
        self._last_line = now
        self.say(f"epoch {metrics['epoch']}/{self.epochs}{self._left(now, done)}, {brief(metrics)}")

    def say(self, text: str) -> None:
        """Something besides the metrics."""
        if self._bar is not None:
            self._bar.console.print(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def _left(self, now: float, done: int) -> str:
        if self._begun is None or done <= self._begun[1]:
            return ""
        seconds = round((now - self._begun[0]) / (done - self._begun[1]) * (self.steps - done))
        return f", {seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    # 80 columns have to do; on fewer the metrics are cut short, and not the time that is left
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metrics]}", table_column=Column(no_wrap=True, ratio=1)),
        console=Console(stderr=True),
        expand=True,
    )
