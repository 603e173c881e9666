"""Estimates of durations."""

from advbnn.paper.estimate import wall_time


def test_shared_work_takes_at_least_as_long_as_its_longest_task() -> None:
    assert wall_time([10, 2, 2], workers=2) == 10
    assert wall_time([4, 4, 4], workers=2) == 6
    assert wall_time([], workers=2) == 0
