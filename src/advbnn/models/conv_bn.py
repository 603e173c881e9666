"""Convolutions that are followed by BatchNorm, found by tracing the network with torch.fx.

With batch statistics, BatchNorm cancels the bias of the convolution before it, so this bias has no effect and no
gradient. With running statistics, BatchNorm is an affine function of each channel and folds into the convolution.
"""

import copy
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx, nn

from advbnn.randomness import seeded

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class ConvBN:
    """Names of a convolution, the BatchNorm that alone uses its output, and the ReLU that alone uses that, if any."""

    conv: str
    norm: str
    relu: str | None


def conv_bn_pairs(net: nn.Module, *, training: bool) -> list[ConvBN]:
    """All such pairs of `net` in training or evaluation mode; neither it nor torch's random state is changed.

    There are none if the network cannot be traced, for example because it branches on its data.
    """
    kinds = {type(module) for module in net.modules()}
    if kinds.isdisjoint(_CONVOLUTIONS) or kinds.isdisjoint(_NORMS):
        return []
    # a copy with the same tensors, since a network may store its activations, which are no numbers here
    shared = {id(tensor): tensor for tensor in (*net.parameters(), *net.buffers())}
    device = next(net.parameters()).device
    try:
        # seeded, since the network may use random numbers while it is traced, for example to skip a layer
        with warnings.catch_warnings(), seeded(0, device):
            warnings.simplefilter("ignore")
            traced = copy.deepcopy(net, shared).train(training)
            graph = fx.Tracer().trace(traced)
    except Exception:  # any code may fail on a proxy of its input
        return []
    modules = dict(traced.named_modules())
    calls = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(node.target for node in calls)
    # modules whose tensors the network also reads directly
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}

    def follower(node: fx.Node, kinds: tuple[type[nn.Module], ...]) -> fx.Node | None:
        """The one user of the node's output, if it is a module of these kinds, called once."""
        user = next(iter(node.users)) if len(node.users) == 1 else None
        if user is None or user.op != "call_module" or user.args != (node,) or user.kwargs or times[user.target] != 1:
            return None
        module = modules[str(user.target)]
        hooked = module._forward_hooks or module._forward_pre_hooks
        return user if type(module) in kinds and not hooked else None

    found = []
    for node in calls:
        conv = modules[str(node.target)]
        if type(conv) not in _CONVOLUTIONS or times[node.target] != 1 or conv._forward_hooks:
            continue
        norm = follower(node, _NORMS)
        if norm is not None and read.isdisjoint((str(node.target), str(norm.target))):
            relu = follower(norm, (nn.ReLU,))
            found.append(ConvBN(str(node.target), str(norm.target), None if relu is None else str(relu.target)))
    return found


def fold(
    weight: torch.Tensor, bias: torch.Tensor | None, eps: float, tensors: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of the convolution that equals a pair with running statistics.

    gamma (W * x + b - m) / sqrt(v + eps) + beta = (f W) * x + f (b - m) + beta, with f = gamma / sqrt(v + eps).
    `tensors` are the BatchNorm's: `running_mean` m, `running_var` v and, if affine, `weight` gamma and `bias` beta.
    """
    factor = torch.rsqrt(tensors["running_var"] + eps)
    if "weight" in tensors:
        factor = factor * tensors["weight"]
    shift = -tensors["running_mean"] if bias is None else bias - tensors["running_mean"]
    shift = shift * factor
    if "bias" in tensors:
        shift = shift + tensors["bias"]
    by_channel = factor.view(-1, *[1] * (weight.dim() - 1))
    return (weight * by_channel).to(weight.dtype), shift.to(weight.dtype)
