"""Estimates of durations."""

import pytest

from advbnn.paper import estimate
from advbnn.paper.estimate import in_words, wall_time


def test_durations_in_words() -> None:
    assert [in_words(seconds) for seconds in (0.2, 4, 89, 600, 7200)] == ["1 s", "4 s", "89 s", "10 min", "2.0 h"]


def test_shared_work_takes_at_least_as_long_as_its_longest_task() -> None:
    assert wall_time([10, 2, 2], workers=2) == 10
    assert wall_time([4, 4, 4], workers=2) == 6
    assert wall_time([], workers=2) == 0


@pytest.mark.parametrize(("long", "calls"), [(60.0, 4), (-1.0, 1)])
def test_a_long_call_is_not_repeated(monkeypatch, long: float, calls: int) -> None:
    monkeypatch.setattr(estimate, "_LONG_CALL", long)
    made: list[int] = []
    assert estimate._seconds(lambda: made.append(1), "cpu", times=2) >= 0
    assert len(made) == calls
