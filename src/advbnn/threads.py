"""How many threads a computation on the CPU uses.

A thread that waits for another one spins, and on a busy machine the other one may wait for its turn. Small networks
gain little from several threads and can become many times slower. The rule depends on the work alone, not on a clock,
so the same seed gives the same result whether the machine is busy or not.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.modules import evaluating, training
from advbnn.randomness import derive_seed, seeded

GRAIN = 1_000_000_000
"""Floating-point operations of a forward pass that occupy a thread; with fewer for each, one thread less is used."""

_CHOSEN_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def are_chosen() -> bool:
    """Whether torch has the number of threads that the environment names."""
    # Dask gives its workers one by the environment, and run_tasks another
    named = (os.environ.get(name, "").partition(",")[0].strip() for name in _CHOSEN_BY)
    return str(torch.get_num_threads()) in named


def share_of_threads(workers: int) -> int:
    """The threads of each of several processes: those of torch shared out, unless the environment names them."""
    return torch.get_num_threads() if are_chosen() else max(1, torch.get_num_threads() // workers)


@contextmanager
def few_threads(model: nn.Module, x: Tensor, batch_size: int) -> Iterator[None]:
    """Within the block torch uses only threads that a batch of inputs like `x` can occupy: at least `GRAIN` for each.

    Never more than torch has, so `torch.set_num_threads(1)` stays. If `OMP_NUM_THREADS` is set, nothing changes, nor
    for a network whose work is unknown since it has no layers of torch.
    """
    before = torch.get_num_threads()
    work = 0 if before == 1 or x.device.type != "cpu" or are_chosen() else _operations(model, x) * batch_size
    if not work:
        yield
        return
    torch.set_num_threads(max(1, min(before, work // GRAIN)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _operations(model: nn.Module, x: Tensor) -> int:
    """Operations of a forward pass for one input, in matrix products and convolutions; 0 if it fails."""
    counted = 0

    def count(module: Any, _: Any, output: Any) -> None:
        nonlocal counted
        if isinstance(output, Tensor):
            counted += 2 * output.numel() * module.weight[0].numel()

    layers = [part for part in model.modules() if isinstance(part, nn.Linear | nn.modules.conv._ConvNd)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # all parts in evaluation mode, so that no running statistics change
        with torch.no_grad(), training(model), evaluating(model), seeded(derive_seed(0, "threads"), x.device):
            model(x)
    except Exception:  # the computation itself will say what is wrong
        return 0
    finally:
        torch.set_num_threads(before)
        for hook in hooks:
            hook.remove()
    return counted // max(1, len(x))
