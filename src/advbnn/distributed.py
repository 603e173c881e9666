"""Several processes as one: who am I, what do all of us know. One process alone is the same with a world of one.

`torchrun` starts the processes and tells each its place in the environment; `joined` reads that, and everything else
asks `World`. Batches are sharded by `data.Batches(rank=..., world=...)`, and so can anything be that is a list of rows.
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
    """The processes that work together.

    Attributes:
        rank: which one this is.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes files and shows progress."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; all have to ask together."""
        if self.size == 1:
            return flag
        # on the CPU, whatever the device: asking must not wait for the device to finish
        asked = torch.tensor(int(flag))
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
        return bool(asked)

    def sum(self, values: Tensor) -> Tensor:
        """The sum of every process's values; all have to ask together."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def average_(self, tensors: Iterable[Tensor]) -> None:
        """Replaces each tensor by its mean over the processes, in one exchange."""
        chosen = [tensor for tensor in tensors if tensor.is_floating_point()]
        if self.size == 1 or not chosen:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in chosen])
        dist.all_reduce(flat)
        for tensor, mean in zip(chosen, (flat / self.size).split([t.numel() for t in chosen]), strict=True):
            tensor.copy_(mean.view_as(tensor))

    def wait(self) -> None:
        """Returns when every process has come here."""
        if self.size > 1:
            self.any(False)

    def share_gradients(self, module: nn.Module) -> nn.Module:
        """`module` with gradients averaged over the processes in every backward pass.

        Buffers are not broadcast before each forward pass: normalisation statistics are averaged once, after the
        update (`average_`), so that all processes hold the same ones, attack with them and save them.
        """
        if self.size == 1:
            return module
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        # the name that torch 2.13 has given to it
        name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        option: dict[str, Any] = {name: False}
        return DistributedDataParallel(module, **option)


ALONE = World()
"""One process."""


def world() -> World:
    """The processes that this one has joined, or itself alone."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return ALONE


@contextmanager
def joined(device: torch.device | str) -> Iterator[tuple[World, torch.device]]:
    """Within the block, this process belongs to the group that torchrun has started it for, if there is one.

    Yields:
        The world, and the device of this process: with CUDA, the one of its place on the machine.
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
    _meet(backend)
    try:
        yield world(), device
    finally:
        dist.destroy_process_group()


def _meet(backend: str) -> None:
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if attempt is None or os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]:
        dist.init_process_group(backend)
        return
    # torchrun keeps one store for all attempts, and in it the addresses of processes that are gone; a restarted one
    # may look there before its partner has written the new address (pytorch issue 135712)
    store, rank, size = next(rendezvous("env://"))
    own = dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own, rank=rank, world_size=size)
