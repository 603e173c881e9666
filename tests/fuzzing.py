"""Wrong values, and what becomes of them: a clear refusal, a run, a traceback or a hang."""

import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

WRONG = (
    *("", " ", "0", "-1", "1.5", "nan", "inf", "-inf", "1e400", "1e308", "1" + 22 * "0", "8/0"),
    *("abc", "none", "true", "[1]", "{a = 1}", "[[", "\x7f", "a\x1b[31m"),
    *("nowhere/at/all", "/proc/nowhere"),
)
"""Values of options and keys; most of them are wrong for every one."""

SECONDS = 60


class HangError(BaseException):
    """The limit of time has passed; not an Exception, so that nothing catches it."""


@contextmanager
def time_limit(seconds: int = SECONDS) -> Iterator[None]:
    """Within the block, `HangError` is raised after this time."""

    def stop(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def some(cases: Sequence[T], count: int) -> list[T]:
    """A seeded choice of the cases, in order; all with `ADVBNN_FUZZ=all`, another choice with `ADVBNN_FUZZ=<seed>`."""
    seed = os.environ.get("ADVBNN_FUZZ", "0")
    if seed == "all" or count >= len(cases):
        return list(cases)
    chosen = sorted(random.Random(f"advbnn {seed}").sample(range(len(cases)), count))
    return [cases[index] for index in chosen]


def bad_outcomes(title: str, cases: Sequence[T], outcome: Callable[[T], tuple[str, str]]) -> list[str]:
    """What is neither "refused" nor "ran", with its case; prints how often each outcome occurred."""
    counts, bad = Counter[str](), []
    for case in cases:
        try:
            with time_limit():
                found, words = outcome(case)
        except HangError:
            found, words = "hang", ""
        counts[found] += 1
        if found not in ("refused", "ran"):
            bad.append(f"{found}: {str(case)[:200]}: {words[-600:]}")
    kinds = ("refused", "ran", "unclear", "traceback", "hang")
    print(f"\nfuzz, {title}: {len(cases)} cases, " + ", ".join(f"{counts[kind]} {kind}" for kind in kinds))
    return bad


def printable(value: str) -> str:
    """The beginning of a value as a message shows it; the empty path is "."."""
    return re.match(r"[ -~]*", value)[0][:10] or "."  # type: ignore[index]
