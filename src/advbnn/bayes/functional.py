"""Where a network keeps its tensors, and running it with others in their places."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from advbnn.bayes.recompute import refusing_checkpointing

Places = Mapping[str, tuple[str, ...]]
"""The places of every tensor, by its name."""


def parameter_paths(tensors: Mapping[str, Tensor], net: nn.Module) -> dict[str, tuple[str, ...]]:
    """All places of the network that hold a parameter or buffer, each once: a tied weight has several.

    Torch can find them itself at every call, but it also lists the second path to a module that is shared, and then
    leaves the drawn weights behind in the network.
    """
    places: dict[int, list[str]] = {id(tensor): [] for tensor in tensors.values()}
    for path, module in net.named_modules():
        for attribute, tensor in (*module._parameters.items(), *module._buffers.items()):
            if id(tensor) in places:
                places[id(tensor)].append(f"{path}.{attribute}" if path else attribute)
    return {name: tuple(places[id(tensor)]) for name, tensor in tensors.items()}


def call_with(net: nn.Module, tensors: Mapping[str, Tensor], places: Places, args: Any, kwargs: Any) -> Any:
    """The network's output with given tensors, by name, in place of its own."""
    placed = {place: tensors[name] for name, spots in places.items() for place in spots}
    if torch.compiler.is_compiling():
        # a compiler records the tensors with the rest of the graph, so recomputation sees them too
        return functional_call(net, placed, args, kwargs, tie_weights=False)
    with refusing_checkpointing():
        return functional_call(net, placed, args, kwargs, tie_weights=False)


def module_tree(tensors: Iterable[tuple[str, Tensor]]) -> nn.Module:
    """A tree of bare modules with the given tensors, parameters or buffers, under the given dotted names."""
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
