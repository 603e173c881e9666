"""Ctrl-C, SIGTERM and a closed terminal stop a run after the current step."""

import signal
import threading
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

    SIGHUP, from a terminal that closes, is ignored if it was before, as by nohup. Does nothing outside the main thread,
    where signals do not arrive.
    """

    received: signal.Signals | None = None

    def __enter__(self) -> "Interrupts":
        self._before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            hangup = [] if HANGUP is None or signal.getsignal(HANGUP) is signal.SIG_IGN else [HANGUP]
            self._before = {
                which: signal.signal(which, self._note) for which in (signal.SIGINT, signal.SIGTERM, *hangup)
            }
        return self

    def __exit__(self, *error: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
