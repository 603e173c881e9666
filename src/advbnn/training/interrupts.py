"""Ctrl-C, SIGTERM and a closed terminal stop a run after the current step."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A run stopped on a signal, with its state saved; the message says how to resume.

    Attributes:
        signal: the signal, if it came to this process.
    """

    def __init__(self, message: str, received: signal.Signals | None = None) -> None:
        super().__init__(message)
        self.signal = received


HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
BROKEN_PIPE = getattr(signal, "SIGPIPE", None)


class Interrupts:
    """Within the block, Ctrl-C, SIGTERM and SIGHUP set `received` instead of ending the process; a second Ctrl-C does.

    SIGHUP, from a terminal that closes, is ignored if it was before, as by nohup. Outside the main thread, where
    signals do not arrive, only `stop_running` sets `received`.
    """

    received: signal.Signals | None = None

    def __enter__(self) -> "Interrupts":
        self._before = _handled(self._note)
        _active.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _active.remove(self)
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)


_active: list[Interrupts] = []


def stop_running() -> bool:
    """Stops the runs of this process as SIGTERM does, from any thread; whether there are any."""
    for each in _active:
        each.received = signal.SIGTERM
    return bool(_active)


@contextmanager
def raised() -> Iterator[None]:
    """Within the block, Ctrl-C, SIGTERM and SIGHUP raise `Interrupted`, except where `Interrupts` waits for them."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted("stopped", signal.Signals(number))

    before = _handled(stop)
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def _handled(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Installs a handler for the signals that stop a run; returns those before it."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    hangup = [] if HANGUP is None or signal.getsignal(HANGUP) is signal.SIG_IGN else [HANGUP]
    return {which: signal.signal(which, handler) for which in (signal.SIGINT, signal.SIGTERM, *hangup)}
