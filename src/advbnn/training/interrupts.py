"""Being asked to stop: noted at once, obeyed when the step is done."""

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop and has done so in good order; the message says how to go on.

    Attributes:
        signal: which signal asked, where it was this process.
    """

    def __init__(self, message: str, asked: signal.Signals | None = None) -> None:
        super().__init__(message)
        self.signal = asked


class Interrupts:
    """Within the block, Ctrl-C and SIGTERM set `asked` instead of ending the process; a second Ctrl-C ends it.

    Elsewhere than in the main thread, where signals do not arrive, it does nothing.
    """

    asked: signal.Signals | None = None

    def __enter__(self) -> "Interrupts":
        self._before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {which: signal.signal(which, self._note) for which in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number)
