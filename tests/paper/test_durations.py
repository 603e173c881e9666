"""Durations in words, and those of shared work."""

from advbnn.paper.durations import in_words, together


def test_durations_as_people_say_them() -> None:
    assert [in_words(seconds) for seconds in (0.2, 4, 89, 600, 7200)] == ["1 s", "4 s", "89 s", "10 min", "2.0 h"]


def test_work_that_is_shared_takes_as_long_as_its_longest_task_at_least() -> None:
    assert together([10, 2, 2], workers=2) == 10
    assert together([4, 4, 4], workers=2) == 6
    assert together([], workers=2) == 0
