"""Estimates of durations."""

from advbnn.paper.estimate import in_words, wall_time


def test_durations_in_words() -> None:
    assert [in_words(seconds) for seconds in (0.2, 4, 89, 600, 7200)] == ["1 s", "4 s", "89 s", "10 min", "2.0 h"]


def test_shared_work_takes_at_least_as_long_as_its_longest_task() -> None:
    assert wall_time([10, 2, 2], workers=2) == 10
    assert wall_time([4, 4, 4], workers=2) == 6
    assert wall_time([], workers=2) == 0
