"""How long a computation takes on this machine."""

import time
from collections.abc import Callable

import torch

_LONG_CALL = 2.0  # seconds; a single call of this length is precise enough


def seconds_of(work: Callable[[], object], device: torch.device, calls: int = 2) -> float:
    """The mean time of a call, after two in which accelerated forms are compiled or captured.

    On the CPU, where nothing is compiled, a single long call is enough.
    """
    first = _timed(work, device, 1)
    if device.type == "cpu" and first > _LONG_CALL:
        return first
    work()
    return _timed(work, device, calls)


def _timed(work: Callable[[], object], device: torch.device, calls: int) -> float:
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        work()
    _synchronize(device)
    return (time.perf_counter() - start) / calls


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
