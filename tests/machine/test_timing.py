"""The time of a call."""

import time

import torch

from advbnn.machine.timing import seconds_of


def test_the_mean_time_of_a_call_leaves_out_the_first_two() -> None:
    pauses = iter([0.2, 0.2, 0.01, 0.01])
    seconds = seconds_of(lambda: time.sleep(next(pauses)), torch.device("cpu"))
    assert 0.01 <= seconds < 0.2
