"""Processes that train together. A single process is a world of one.

`torchrun` starts the processes and sets the environment variables that `joined` reads; everything else uses `World`.
`data.Batches(rank=..., world=...)` shards the batches.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

# Before a group exists: the default arguments of this module keep the group that they find, and torch imports it with
# the first optimizer. A group that is kept outlives its destruction: its threads may abort the process at its end.
import torch.distributed.nn.functional
from torch import Tensor
from torch.distributed.rendezvous import rendezvous


@dataclass(frozen=True)
class World:
    """A group of `size` processes; this one has the index `rank`."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; all must call this together."""
        if self.size == 1:
            return flag
        # on the CPU, so that the device is not synchronized
        flags = torch.tensor(int(flag))
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return bool(flags)

    def sum(self, values: Tensor) -> Tensor:
        """The sum of the values of all processes; all must call this together."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def average_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over the processes, in one exchange; all must call this together."""
        self._exchange(tensors, lambda flat: dist.all_reduce(flat.div_(self.size)))

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by the first process's, in one exchange; all must call this together."""
        self._exchange(tensors, lambda flat: dist.broadcast(flat, src=0))

    @torch.no_grad()
    def _exchange(self, tensors: Iterable[Tensor], exchange: Callable[[Tensor], object]) -> None:
        chosen = [tensor for tensor in tensors if tensor.is_floating_point()]
        if self.size == 1 or not chosen:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in chosen])
        exchange(flat)
        for tensor, value in zip(chosen, flat.split([t.numel() for t in chosen]), strict=True):
            tensor.copy_(value.view_as(tensor))


ALONE = World()
"""One process."""


def world() -> World:
    """The group that this process has joined, or this process alone."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return ALONE


@contextmanager
def joined(device: torch.device | str) -> Iterator[tuple[World, torch.device]]:
    """Within the block, this process belongs to the group that torchrun started, if there is one.

    Yields the world and the device of this process: with CUDA, the device of its local rank.
    """
    device = torch.device(device)
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield World(), device
        return
    backend = "gloo"
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    _init_process_group(backend)
    try:
        yield world(), device
    finally:
        dist.destroy_process_group()


def _init_process_group(backend: str) -> None:
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if attempt is None or os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]:
        dist.init_process_group(backend)
        return
    # torchrun keeps one store for all attempts, with the addresses of ended processes; a restarted process may read
    # such an address before its partner has written the new one (pytorch issue 135712)
    store, rank, size = next(rendezvous("env://"))
    own = dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own, rank=rank, world_size=size)
