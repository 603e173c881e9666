"""Processes that train together. A single process is a world of one.

`torchrun` starts the processes and sets the environment variables that `joined` reads; everything else uses `World`.
`data.Batches(rank=..., world=...)` shards the batches.
"""

import inspect
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel


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
        """Replace each tensor by its mean over the processes, in one exchange."""
        chosen = [tensor for tensor in tensors if tensor.is_floating_point()]
        if self.size == 1 or not chosen:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in chosen])
        dist.all_reduce(flat)
        for tensor, mean in zip(chosen, (flat / self.size).split([t.numel() for t in chosen]), strict=True):
            tensor.copy_(mean.view_as(tensor))

    def share_gradients(self, module: nn.Module) -> nn.Module:
        """`module` with gradients averaged over the processes in every backward pass.

        Buffers are not broadcast before each forward pass: running statistics are averaged once, after the update
        (`average_`), so that all processes attack with the same ones and save them.
        """
        if self.size == 1:
            return module
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        # renamed in torch 2.13
        name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options: dict[str, Any] = {name: False}
        return DistributedDataParallel(module, **options)


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
