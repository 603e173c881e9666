"""Residual sums of a compiled pass: with the convolution before them and the ReLU after them, as one call.

In a pass that is not compiled, `fused_conv.Waiting` does the same.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.nn import functional

from advbnn.fast.fused_conv import CONV_RELU

_SUMS: tuple[Any, ...] = (operator.add, operator.iadd, torch.add)
_RELUS: tuple[Any, ...] = (functional.relu, torch.relu)


def inductor_with_fused_sums(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """torch's own compiler, on the graph with fused sums: a `backend` of torch.compile."""
    from torch._inductor.compile_fx import compile_fx  # slow to import

    return cast(Callable[..., Any], compile_fx(fuse_sums(graph), list(inputs)))


def fuse_sums(module: fx.GraphModule) -> fx.GraphModule:
    """The module, each relu(W * x + b + z) of its traced graph replaced by one call where W has no gradient."""
    graph = module.graph
    for relu in [node for node in graph.nodes if node.target in _RELUS and node.args]:
        total = relu.args[0]
        if total.target not in _SUMS or len(total.users) > 1 or len(total.args) != 2 or total.kwargs:
            continue
        # what is added in place to z may be seen by others
        orders = (total.args,) if total.target is operator.iadd else (total.args, total.args[::-1])
        for conv, z in orders:
            if _fits(conv, z) and not _changes_something(conv, total):
                x, weight, bias, *geometry = conv.args
                with graph.inserting_before(total):  # not at the ReLU, before which z may change
                    fused = graph.call_function(CONV_RELU, (x, weight, bias, z, *geometry))
                fused.meta = dict(relu.meta)
                relu.replace_all_uses_with(fused)
                for node in (relu, total, conv):
                    graph.erase_node(node)
                break
    module.recompile()
    return module


def _fits(conv: Any, z: Any) -> bool:
    """Whether a term is the output of a convolution that nothing else uses, and the other one a tensor like it."""
    if not (isinstance(conv, fx.Node) and isinstance(z, fx.Node) and conv.target is torch.conv2d):
        return False
    # stride, padding and dilation may be numbers or words for torch, but not for the fused call
    plain = len(conv.args) == 7 and all(isinstance(one, tuple | list) for one in conv.args[3:6]) and not conv.kwargs
    if conv is z or len(conv.users) > 1 or not plain or not isinstance(conv.args[2], fx.Node):
        return False
    operands: Any = (conv, z, *conv.args[:3])
    values = [node.meta["example_value"] for node in operands]
    # autocast converts what goes into a convolution of torch, but not what goes into the fused call
    alike = all(isinstance(one, Tensor) and one.dtype == values[0].dtype for one in values)
    return alike and values[0].shape == values[1].shape and not values[3].requires_grad


def _changes_something(first: fx.Node, last: fx.Node) -> bool:
    """Whether an operation between two nodes may change a tensor in place, such as the input of a convolution."""
    node = first.next
    while node is not last:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        in_place = name.endswith("_") or name == "setitem" or (name.startswith("i") and hasattr(operator, name))
        if in_place or "inplace" in node.kwargs or "out" in node.kwargs or any(one is True for one in node.args):
            return True
        node = node.next
    return False
