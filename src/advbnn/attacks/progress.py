"""How far an attack is, and who is told."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
