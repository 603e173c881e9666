"""The names of a network's tensors: all paths to each of them, a tree of modules from names, and other values."""

import copy
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from torch import Tensor, nn


def parameter_paths(net: nn.Module) -> dict[str, tuple[str, ...]]:
    """All paths to each parameter and buffer of `net`, by its first name; a tied weight has several.

    Torch can find tied weights itself at every call. But it also lists the second path to a module that is shared,
    and then leaves the sampled weights behind in the network.
    """
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    paths: dict[int, list[str]] = {id(tensor): [] for tensor in tensors.values()}
    for prefix, module in net.named_modules():
        for attribute, tensor in (*module._parameters.items(), *module._buffers.items()):
            if id(tensor) in paths:
                paths[id(tensor)].append(f"{prefix}.{attribute}" if prefix else attribute)
    return {name: tuple(paths[id(tensor)]) for name, tensor in tensors.items()}


def module_tree(tensors: Iterable[tuple[str, Tensor]]) -> nn.Module:
    """A tree of bare modules that holds the tensors, parameters or buffers, under their dotted names."""
    root = nn.Module()
    for name, tensor in tensors:
        *path, leaf = name.split(".")
        node = root
        for part in path:
            if part not in node._modules:
                node.add_module(part, nn.Module())
            node = node.get_submodule(part)
        if isinstance(tensor, nn.Parameter):
            node.register_parameter(leaf, tensor)
        else:
            node.register_buffer(leaf, tensor)
    return root


def saved_tensors(net: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer under its first name."""
    transient = {id(m._buffers[name]) for m in net.modules() for name in m._non_persistent_buffers_set}
    held = chain(net.named_parameters(), net.named_buffers())
    return {name: tensor for name, tensor in held if id(tensor) not in transient}


def network_with(net: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A plain network built like `net` on the memory of `tensors`, by their first names; others are copied."""
    shared = {id(own): tensors[name] for name, own in saved_tensors(net).items() if name in tensors}
    # deepcopy takes these instead of copying the network's own
    memo: dict[int, Any] = {id(p): nn.Parameter(shared[id(p)]) for p in net.parameters() if id(p) in shared}
    memo |= {id(buffer): shared[id(buffer)] for buffer in net.buffers() if id(buffer) in shared}
    return copy.deepcopy(net, memo)
