"""Passes of several networks on one batch, with a gradient that needs no more memory than a budget."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ACTIVATIONS = 2 * 2**30
"""Bytes of activations kept for a gradient: a quarter of a small computer's memory. More are computed again."""


def outputs_of(networks: Sequence[Callable[[Tensor], Any]], x: Tensor, budget: int = ACTIVATIONS) -> list[Any]:
    """The output of each network for `x`.

    A gradient through K of them costs K passes forward and K backward if all activations are kept, as they are if they
    fit `budget` bytes. Otherwise only those of the first network are, and K - 1 passes are repeated, one at a time,
    when their gradient is computed: the memory of two networks. Captured CUDA graphs do so by themselves.
    """
    first, *others = networks
    if not others or not torch.is_grad_enabled() or not x.requires_grad or torch.compiler.is_compiling():
        return [network(x) for network in networks]
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> tuple[Tensor, int]:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor, tensor._version

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
            output = first(x)
    except RuntimeError:  # torch.func allows no hooks; real errors come again
        return [network(x) for network in networks]
    if len(networks) * sum(saved.values()) <= budget:
        return [output, *(network(x) for network in others)]
    return [output, *(checkpoint(network, x, use_reentrant=False) for network in others)]


def _unpack(packed: tuple[Tensor, int]) -> Tensor:
    tensor, version = packed
    if tensor._version != version:  # autograd's own check, which hooks replace
        raise RuntimeError("a tensor that the gradient needs was changed in place by the network")
    return tensor
