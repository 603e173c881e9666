"""Passes of several networks on one batch, with a gradient that needs no more memory than a budget."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Network = Callable[[Tensor], Any]

ACTIVATIONS = 2 * 2**30
"""Bytes of activations kept for a gradient: a quarter of a small computer's memory. More are computed again."""


def outputs_of(networks: Sequence[Network], x: Tensor, budget: int = ACTIVATIONS) -> list[Any]:
    """The output of each network for `x`; none of them is random.

    A gradient through K of them costs K passes forward and K backward if all activations are kept, as they are if they
    fit `budget` bytes, or if weights have a gradient too. Otherwise only those of the first network are, and the other
    passes are repeated, one at a time, when their gradient is computed: K - 1 more, and the memory of two networks.
    Captured CUDA graphs, which share their memory, do so by themselves.
    """
    first, *others = networks
    if not others or not torch.is_grad_enabled() or not x.requires_grad or torch.compiler.is_compiling():
        return [network(x) for network in networks]
    kept: WeakSet[_Saved] = WeakSet()  # not those of passes within the pass, such as checks, that are over

    def pack(tensor: Tensor) -> _Saved:
        saved = _Saved(tensor)
        kept.add(saved)
        return saved

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, _Saved.unpack):
            output = first(x)
    except RuntimeError:  # torch.func allows no hooks; real errors come again
        return [network(x) for network in networks]
    storages = [saved.tensor.untyped_storage() for saved in kept]
    needed = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    if len(networks) * needed <= budget or _differentiates_more(output, x):
        return [output, *(network(x) for network in others)]
    return [output, *(_Repeated.apply(x, network) for network in others)]


class _Saved:
    """A tensor that autograd keeps for a gradient.

    It is detached: a layer that keeps its own output, as tanh does, would keep itself alive otherwise.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self._version = tensor.detach(), tensor._version

    def unpack(self) -> Tensor:
        if self.tensor._version != self._version:  # autograd's own check, which hooks replace
            raise RuntimeError("a tensor that the gradient needs was changed in place by the network")
        return self.tensor


class _Repeated(torch.autograd.Function):
    """A pass that keeps nothing but its input, and is repeated for its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, network: Network) -> Any:
        ctx.network = network
        ctx.save_for_backward(x)
        return network(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        with torch.enable_grad():
            leaf = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(ctx.network(leaf), leaf, slope)[0], None


def _differentiates_more(output: Any, x: Tensor) -> bool:
    """Whether an output has gradients of other tensors than `x`, or is no tensor with a gradient."""
    if not isinstance(output, Tensor) or output.grad_fn is None:
        return True
    seen, nodes = {x.grad_fn}, [output.grad_fn]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if getattr(node, "variable", x) is not x:
            return True
        nodes += [after for after, _ in node.next_functions if after is not None]
    return False
