"""A network without its own weights, run with the weights and statistics it is given, and with fused layers.

The fast training step and attack sample weights in half precision and pass them to a `FusedNet`, while the network
itself, its parameters and its optimizer stay in single precision.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from advbnn.bayes.functional import parameter_paths
from advbnn.fast.fused_conv import FusedConv2d, adapt_convolutions
from advbnn.models.conv_bn import ConvBN, conv_bn_pairs, is_computed, scaled, scales_and_shifts


class FusedNet:
    """The structure of `net`, in training or evaluation mode, computing in `precision`.

    In evaluation mode, BatchNorm is folded into the convolution before it, also into a weight that is computed in every
    pass, and the ReLU after it, perhaps of a sum with a shortcut, is computed with the convolution. In training mode, a
    bias that BatchNorm cancels is not added to the activations but to the running mean directly, so its gradient is
    exactly zero. Both are exact up to rounding. `net` is not changed and not kept.

    `precision` is the type of matrix products. BatchNorm, losses and the like stay in float32, by the rules of torch's
    autocast. In training mode, the running statistics that are passed in are updated.
    """

    def __init__(self, net: nn.Module, precision: torch.dtype, training: bool) -> None:
        self.precision = precision
        self.paths = parameter_paths(net)
        self.structure = copy.deepcopy(net).to("meta").train(training)
        adapt_convolutions(self.structure)
        pairs = [pair for pair in conv_bn_pairs(net, training=training) if self._owns_its_tensors(pair)]
        self._cancelled = _cancelled_biases(self.structure, pairs) if training else []
        self.folds = [] if training else _folded_norms(self.structure, pairs)
        kinds = sorted({fold.has for fold in self.folds})
        self._alike = [[fold for fold in self.folds if fold.has == kind] for kind in kinds]

    def placed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors by their paths in the structure; a tied weight has several."""
        return {path: tensor for name, tensor in tensors.items() for path in self.paths[name]}

    def fold(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that the structure uses, by path: with folded BatchNorm, or without cancelled biases."""
        placed = self.placed(tensors)
        for bias in self._cancelled:
            bias.place(placed)
        for folds in self._alike:  # together, since their operations take no longer than one of them
            norms = [fold.take_norm(placed) for fold in folds]
            biases = [placed[fold.bias] for fold in folds] if folds[0].has[2] else None
            factors, shifts = scales_and_shifts(norms, [fold.eps for fold in folds], biases)
            for fold, factor, shift in zip(folds, factors, shifts, strict=True):
                fold.place(placed, factor, shift)
        return placed

    def __call__(self, tensors: Mapping[str, Tensor], x: Tensor, folded: bool = False) -> Tensor:
        """The network's output in float32, with these parameters and buffers; `folded` if by `fold` already."""
        half = self.precision != torch.float32
        with torch.autocast(x.device.type, self.precision, enabled=half, cache_enabled=False):
            placed = {**tensors} if folded else self.fold(tensors)
            outputs: Tensor = functional_call(self.structure, placed, (x,), tie_weights=False)
        return outputs.float()

    def _owns_its_tensors(self, pair: ConvBN) -> bool:
        """Whether no other module shares a tensor with the pair, and no hook computes its weight."""
        parts = _parts(self.structure, pair)
        if f"{pair.conv}.weight" not in self.paths and not is_computed(parts[0]):
            return False
        ours = [name for name in self.paths if name.startswith((f"{pair.conv}.", f"{pair.norm}."))]
        held = [name for part in parts for name, _ in (*part.named_parameters(), *part.named_buffers())]
        return len(ours) == len(held) and all(len(self.paths[name]) == 1 for name in ours)


class _CancelledBias:
    """A bias that batch statistics cancel: it is left out."""

    def __init__(self, pair: ConvBN, conv: nn.Conv2d, momentum: float) -> None:
        self._bias, self._mean = f"{pair.conv}.bias", f"{pair.norm}.running_mean"
        self._share = momentum / (1 - momentum)
        conv.bias = None

    def place(self, placed: dict[str, Tensor]) -> None:
        """Add the share of the bias to the running mean, before the update multiplies it by 1 - momentum."""
        bias = placed.pop(self._bias).detach()
        if self._mean in placed:
            placed[self._mean].add_(bias, alpha=self._share)


class Fold:
    """A BatchNorm with running statistics, folded into the convolution before it.

    If the weight is `computed` in the pass, its last parametrization multiplies it by the factors. `has` says which of
    gamma, beta and the bias of the convolution there are.
    """

    def __init__(self, pair: ConvBN, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        self.weight, self.bias, self.norm = f"{pair.conv}.weight", f"{pair.conv}.bias", pair.norm
        self.has = norm.weight is not None, norm.bias is not None, conv.bias is not None
        self.channels, self.eps, self.computed = norm.num_features, norm.eps, is_computed(conv)
        if conv.bias is None:  # for the shift
            conv.bias = nn.Parameter(torch.empty(norm.num_features, device="meta"))
        if self.computed:
            scaling = _Scaling(norm.num_features)
            parametrize.register_parametrization(conv, "weight", scaling, unsafe=True)  # unsafe: computes nothing now
            self._factor = next(f"{pair.conv}.{name}.factor" for name, part in conv.named_modules() if part is scaling)

    def take_norm(self, placed: dict[str, Tensor]) -> dict[str, Tensor]:
        """Remove the tensors of the BatchNorm, and return them by their own names."""
        prefix = f"{self.norm}."
        return {name.removeprefix(prefix): placed.pop(name) for name in list(placed) if name.startswith(prefix)}

    def place(self, placed: dict[str, Tensor], factor: Tensor, shift: Tensor) -> None:
        """Set the tensors of the folded convolution."""
        if self.computed:
            placed[self._factor], placed[self.bias] = factor, shift
        else:
            weight = placed[self.weight]
            placed[self.weight], placed[self.bias] = scaled(weight, factor), shift.to(weight.dtype)


class _Scaling(nn.Module):
    """The last parametrization of a weight, which multiplies each filter by its factor."""

    factor: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("factor", torch.empty(channels, device="meta"))

    def forward(self, weight: Tensor) -> Tensor:
        return scaled(weight, self.factor)


def _cancelled_biases(structure: nn.Module, pairs: Sequence[ConvBN]) -> list[_CancelledBias]:
    cancelled = []
    for pair in pairs:
        conv, norm = _parts(structure, pair)
        # without a momentum the running mean is a cumulative average, whose share changes with every batch
        if conv.bias is not None and norm.momentum is not None and norm.momentum < 1:
            cancelled.append(_CancelledBias(pair, conv, norm.momentum))
    return cancelled


def _folded_norms(structure: nn.Module, pairs: Sequence[ConvBN]) -> list[Fold]:
    folded = []
    for pair in pairs:
        conv, norm = _parts(structure, pair)
        if norm.running_mean is None or norm.training:  # a network may keep it in training mode
            continue
        folded.append(Fold(pair, conv, norm))
        structure.set_submodule(pair.norm, nn.Identity())
        if isinstance(conv, FusedConv2d):
            conv.with_relu, conv.waits = pair.relu is not None, pair.relu is None and pair.activated
            if pair.relu is not None:
                structure.set_submodule(pair.relu, nn.Identity())
    return folded


def _parts(structure: nn.Module, pair: ConvBN) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    return cast(nn.Conv2d, structure.get_submodule(pair.conv)), cast(nn.BatchNorm2d, structure.get_submodule(pair.norm))
