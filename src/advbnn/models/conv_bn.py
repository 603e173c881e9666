"""Convolutions that are followed by BatchNorm, found by tracing the network with torch.fx.

With batch statistics, BatchNorm cancels the bias of the convolution before it, so this bias has no effect and no
gradient. With running statistics, BatchNorm is an affine function of each channel and folds into the convolution,
whether its weight is stored or computed anew in every pass by a parametrization, such as one that adds noise.
"""

import copy
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from advbnn.randomness import seeded

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_RELUS: tuple[Any, ...] = (functional.relu, torch.relu, functional.relu_, torch.relu_, "relu", "relu_")


@dataclass(frozen=True)
class ConvBN:
    """Names of a convolution, the BatchNorm that alone uses its output, and the ReLU that alone uses that, if any.

    `activated`: a ReLU, module or function, alone uses the BatchNorm's output or the sum of that and another tensor.
    """

    conv: str
    norm: str
    relu: str | None
    activated: bool


def conv_bn_pairs(net: nn.Module, *, training: bool) -> list[ConvBN]:
    """All such pairs of `net` in training or evaluation mode; neither it nor torch's random state is changed.

    A module that cannot be traced, for example because it branches on its data, has no pairs inside. There are none at
    all if that is the network itself.
    """
    kinds = {_kind(module) for module in net.modules()}
    if kinds.isdisjoint(_CONVOLUTIONS) or kinds.isdisjoint(_NORMS):
        return []
    try:
        trace = _Trace(net, training)
    except Exception:  # any code may fail on a proxy of its input
        return []
    # modules whose tensors the network also reads directly, or whose weight it also computes
    read = {str(node.target).rpartition(".")[0] for node in trace.nodes if node.op == "get_attr"}
    called = [str(node.target).partition(".parametrizations.") for node in trace.calls]
    read |= {owner for owner, computed, _ in called if computed}
    found = []
    for node in trace.calls:
        conv = trace.module(node)
        if _kind(conv) not in _CONVOLUTIONS or trace.times[node.target] != 1 or conv._forward_hooks:
            continue
        norm = trace.follower(node, _NORMS)
        if norm is not None and read.isdisjoint((str(node.target), str(norm.target))):
            relu = trace.follower(norm, (nn.ReLU,))
            names = str(node.target), str(norm.target), None if relu is None else str(relu.target)
            found.append(ConvBN(*names, trace.activated(norm)))
    return found


def is_computed(conv: nn.Module) -> bool:
    """Whether a parametrization computes the weight of a convolution in every pass."""
    return parametrize.is_parametrized(conv, "weight")


def _kind(module: nn.Module) -> type[nn.Module]:
    """The type of a module, without the parametrizations of its weight."""
    if parametrize.is_parametrized(module) and set(module.parametrizations) == {"weight"}:  # type: ignore[arg-type]
        return parametrize.type_before_parametrizations(module)
    return type(module)


class _Trace:
    """The calls of a network's modules, and who uses their outputs."""

    def __init__(self, net: nn.Module, training: bool) -> None:
        # a copy with the same tensors, since a network may store its activations, which are no numbers here
        shared = {id(tensor): tensor for tensor in (*net.parameters(), *net.buffers())}
        # seeded, since the network may use random numbers while it is traced, for example to skip a layer
        with warnings.catch_warnings(), seeded(0, next(net.parameters()).device):
            warnings.simplefilter("ignore")
            traced = copy.deepcopy(net, shared).train(training)
            self.nodes = list(_Tracer().trace(traced).nodes)
        self.modules = dict(traced.named_modules())
        self.calls = [node for node in self.nodes if node.op == "call_module"]
        self.times = Counter(node.target for node in self.calls)
        # others may use what is inside of them, where the trace does not see it
        inside = {id(part) for node in self.calls for part in list(self.module(node).modules())[1:]}
        self.times.update(name for name, module in self.modules.items() if id(module) in inside)

    def module(self, call: fx.Node) -> nn.Module:
        module: nn.Module = self.modules[str(call.target)]
        return module

    def follower(self, node: fx.Node, kinds: tuple[type[nn.Module], ...]) -> fx.Node | None:
        """The one user of the node's output, if it is a module of these kinds, called once."""
        user = _only_user(node)
        if user is None or user.op != "call_module" or user.args != (node,) or user.kwargs:
            return None
        module = self.module(user)
        hooked = module._forward_hooks or module._forward_pre_hooks
        return user if type(module) in kinds and self.times[user.target] == 1 and not hooked else None

    def activated(self, node: fx.Node) -> bool:
        """Whether a ReLU alone uses the node's output, or alone uses a sum that alone does."""
        user = _only_user(node)
        if user is not None and user.target in (operator.add, operator.iadd, torch.add):
            node, user = user, _only_user(user)
        if user is None or user.args[:1] != (node,):
            return False
        if user.op != "call_module":
            return user.target in _RELUS
        return type(self.module(user)) is nn.ReLU and not self.module(user)._forward_pre_hooks


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


class _Tracer(fx.Tracer):
    """Treats a module whose code fails on a proxy as one step, as it does those of torch."""

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        last, stack = next(iter(reversed(self.graph.nodes))), list(self.module_stack.items())
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            while (node := next(iter(reversed(self.graph.nodes)))) is not last:
                self.graph.erase_node(node)
            self.module_stack.clear()
            self.module_stack.update(stack)
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)


def scales_and_shifts(
    norms: Sequence[Mapping[str, torch.Tensor]], eps: Sequence[float], biases: Sequence[torch.Tensor] | None
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    """Of each pair with running statistics, the factors of the filters and the bias of the convolution that equals it.

    gamma (W * x + b - m) / sqrt(v + eps) + beta = (f W) * x + f (b - m) + beta, with f = gamma / sqrt(v + eps).
    `norms` are the tensors of the BatchNorms: `running_mean` m, `running_var` v and, where all have it, `weight` gamma
    and `bias` beta. `biases` are those of the convolutions, if all have one. Each operation is one for all pairs.
    """

    def each(name: str) -> list[torch.Tensor]:
        return [norm[name] for norm in norms]

    factors = torch._foreach_rsqrt(torch._foreach_add(each("running_var"), eps))
    if "weight" in norms[0]:
        factors = torch._foreach_mul(factors, each("weight"))
    means = each("running_mean")
    shifts = torch._foreach_neg(means) if biases is None else torch._foreach_sub(list(biases), means)
    shifts = torch._foreach_mul(shifts, factors)
    return factors, torch._foreach_add(shifts, each("bias")) if "bias" in norms[0] else shifts


def scaled(weight: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """The weight, each filter times its factor, in the type of the weight."""
    return (weight * factor.view(-1, *[1] * (weight.dim() - 1))).to(weight.dtype)
