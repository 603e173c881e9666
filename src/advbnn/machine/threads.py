"""How many threads a computation on the CPU uses.

A thread that waits for another one spins, and on a busy machine the other one may wait for its turn. Small networks
gain little from several threads and can become many times slower. The rule depends on the work alone, not on a clock,
so the same seed gives the same result whether the machine is busy or not.
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from advbnn.modules import device_of

GRAIN = 1_000_000_000
"""Floating-point operations of a forward pass that each thread should have, by the bound of `most_operations`."""


def are_chosen() -> bool:
    """Whether torch has the number of threads that the environment names."""
    # Dask gives its workers one by the environment, and `run_tasks` another
    named = (os.environ.get(name, "").partition(",")[0].strip() for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    return str(torch.get_num_threads()) in named


def share_of_threads(workers: int) -> int:
    """The threads of each of several processes: those of torch shared out, unless the environment names them."""
    return torch.get_num_threads() if are_chosen() else max(1, torch.get_num_threads() // workers)


@contextmanager
def few_threads(model: nn.Module, shape: Sequence[int], batch_size: int) -> Iterator[None]:
    """Within the block torch uses no more threads than have `GRAIN` to do, for batches of inputs of this shape.

    Never more than torch has, so that `torch.set_num_threads(1)` stays; and if `OMP_NUM_THREADS` is set, just these.
    """
    before = torch.get_num_threads()
    if before > 1 and device_of(model, torch.device("cpu")).type == "cpu" and not are_chosen():
        torch.set_num_threads(max(1, min(before, batch_size * most_operations(model, shape) // GRAIN)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def most_operations(model: nn.Module, shape: Sequence[int]) -> int:
    """A bound on the operations of a forward pass for one input: two for each weight of a matrix at every position.

    Layers on images that were made smaller do less. No pass is needed, which a network with a memory would notice.
    """
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() > 1)
    return 2 * matrices * math.prod(shape[1:])
