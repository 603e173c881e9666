"""Why a network runs eagerly although a fast engine was to run it."""

import logging
import warnings

log = logging.getLogger("advbnn")


class EagerWarning(UserWarning):
    """A network runs eagerly, which is slower, although a fast engine was to run it."""


class Fallback:
    """The first reason why a network, or one of its members, runs eagerly; None as long as there is none.

    Every reason is logged, and with `warn` the first is a warning: the passes of one network often fail alike.
    """

    def __init__(self, warn: bool = False) -> None:
        self.reason: str | None = None
        self._warn = warn

    def add(self, reason: str, what: str = "the model") -> None:
        """Note why `what` runs eagerly."""
        log.info("running %s eagerly: %s", what, reason)
        if self.reason is None:
            self.reason = reason
            if self._warn:
                warnings.warn(f"running {what} eagerly, which is slower: {reason}", EagerWarning, stacklevel=2)
