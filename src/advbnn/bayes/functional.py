"""The names of a network's tensors: all paths to each of them, and a tree of modules from names."""

from collections.abc import Iterable

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
