"""Which convolutions are followed by a batch normalisation, found by following the network's own code.

Such a pair has two properties that are worth knowing. By the statistics of a batch, normalisation takes away whatever
the convolution's bias adds, so the bias has no effect and no gradient. By running statistics, it is an affine function
of each channel, and folds into the convolution.
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
class NormalisedConvolution:
    """A convolution whose output goes to a batch normalisation and nowhere else.

    Attributes:
        conv: the convolution's name in the network.
        norm: the name of the normalisation.
        relu: the name of the ReLU that the normalisation goes to and nowhere else; None if it is no module, or none.
    """

    conv: str
    norm: str
    relu: str | None


def normalised_convolutions(net: nn.Module, *, training: bool) -> list[NormalisedConvolution]:
    """All such pairs; none if the network's code cannot be followed, as where it branches on its data.

    Args:
        net: the network; neither it nor the state of torch's random numbers is changed.
        training: follow the code that runs in training mode, or that in evaluation mode.
    """
    kinds = {type(module) for module in net.modules()}
    if kinds.isdisjoint(_CONVOLUTIONS) or kinds.isdisjoint(_NORMS):
        return []
    # a copy with the same tensors, since a network may keep what it sees, and here it sees no numbers
    shared = {id(tensor): tensor for tensor in (*net.parameters(), *net.buffers())}
    device = next(net.parameters()).device
    try:
        # seeded, since what a network draws for itself alone, such as whether to skip a layer, is drawn here too
        with warnings.catch_warnings(), seeded(0, device):
            warnings.simplefilter("ignore")
            twin = copy.deepcopy(net, shared).train(training)
            graph = fx.Tracer().trace(twin)
    except Exception:  # whatever a network's code does to a stand-in for its input
        return []
    modules = dict(twin.named_modules())
    calls = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(node.target for node in calls)
    # of modules whose tensors the network also reads by itself, the module's call is not all
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}

    def follower(node: fx.Node, kinds: tuple[type[nn.Module], ...]) -> fx.Node | None:
        """The one user of the node's output, if it is a module of these kinds, called once."""
        user = next(iter(node.users)) if len(node.users) == 1 else None
        if user is None or user.op != "call_module" or user.args != (node,) or user.kwargs or times[user.target] != 1:
            return None
        return user if type(modules[str(user.target)]) in kinds and not _hooked(modules[str(user.target)]) else None

    found = []
    for node in calls:
        conv = modules[str(node.target)]
        if type(conv) not in _CONVOLUTIONS or times[node.target] != 1 or conv._forward_hooks:
            continue
        norm = follower(node, _NORMS)
        if norm is not None and read.isdisjoint((str(node.target), str(norm.target))):
            relu = follower(norm, (nn.ReLU,))
            found.append(
                NormalisedConvolution(str(node.target), str(norm.target), None if relu is None else str(relu.target))
            )
    return found


def hidden_biases(net: nn.Module) -> list[tuple[str, str]]:
    """Biases without effect while their normalisation uses the statistics of a batch: (bias, normalisation), by name.

    Their gradient is zero but for rounding, which Adam turns into steps of full size: the mean would wander, to no
    harm, and so would the standard deviation of a random bias, to the harm of every pass by running statistics.
    """
    modules = dict(net.named_modules())
    pairs = [(f"{pair.conv}.bias", pair.norm) for pair in normalised_convolutions(net, training=True)]
    return [(bias, norm) for bias, norm in pairs if modules[bias.removesuffix(".bias")].bias is not None]


def fold(
    weight: torch.Tensor, bias: torch.Tensor | None, eps: float, tensors: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The convolution that does the work of a pair by running statistics.

    gamma (W * x + b - m) / sqrt(v + eps) + beta = (f W) * x + f (b - m) + beta, with f = gamma / sqrt(v + eps).

    Args:
        weight: W.
        bias: b; none when None.
        eps: the normalisation's own.
        tensors: `running_mean` m, `running_var` v and, if it has such, `weight` gamma and `bias` beta.
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


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
