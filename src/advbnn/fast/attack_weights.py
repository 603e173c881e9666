"""The weights of an attack, for which a twin has folded normalisation into convolutions.

Weights that are not random are folded once a step. Random ones are scaled as they are drawn, in one pass over memory.
Where neither applies, the twin folds them itself, at every pass.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from advbnn.errors import UnsupportedError
from advbnn.fast.compiling import compiled_apart
from advbnn.fast.fused_net import FusedNet
from advbnn.fast.weights import DrawnWeights, FixedWeights


class AttackWeights(Protocol):
    """Weights and statistics for the passes of an attack.

    Attributes:
        folded: whether they are folded already; the twin wants to know.
    """

    folded: bool

    def refresh(self) -> None:
        """Follow parameters and statistics after an update, and after the weights that these come from."""

    def draw(self, seed: Tensor, stream: int) -> dict[str, Tensor]:
        """All tensors of one pass."""


def attack_weights(
    weights: FixedWeights | DrawnWeights, twin: FusedNet, buffers: Mapping[str, Tensor], compiled: bool
) -> AttackWeights:
    """The weights of an attack in the fastest form that applies.

    Args:
        weights: the weights of the step.
        twin: the network in evaluation mode.
        buffers: its running statistics.
        compiled: compile the small computations in between.
    """
    if isinstance(weights, FixedWeights):
        return _FoldedOnce(weights, twin, buffers)
    try:
        return FoldedDraw(weights, twin, buffers, compiled)
    except UnsupportedError:
        return Unfolded(weights, buffers)


class Unfolded:
    """Weights and statistics as they are.

    Args:
        weights: the weights of the step.
        buffers: statistics; a twin in training mode changes them.
    """

    folded = False

    def __init__(self, weights: FixedWeights | DrawnWeights, buffers: Mapping[str, Tensor]) -> None:
        self._weights, self._buffers = weights, buffers

    def refresh(self) -> None:
        """The draws are fresh anyway."""

    def draw(self, seed: Tensor, stream: int) -> dict[str, Tensor]:
        """The weights of one draw, and the statistics."""
        return {**self._weights.draw(seed, stream), **self._buffers}


class _FoldedOnce:
    folded = True

    def __init__(self, weights: FixedWeights, twin: FusedNet, buffers: Mapping[str, Tensor]) -> None:
        self._weights, self._fused_net, self._buffers = weights, twin, buffers

    def refresh(self) -> None:
        self._tensors = self._fused_net.fold({**self._weights.values, **self._buffers})

    def draw(self, seed: Tensor, stream: int) -> dict[str, Tensor]:
        return self._tensors


class FoldedDraw:
    """Draws of random weights with normalisation folded in.

    The factor gamma / sqrt(v + eps) of a channel needs the drawn gamma and the running variance alone, so vectors are
    drawn first. Means and standard deviations of the matrices are rounded to the precision of the computation once a
    step: the drawn weight is rounded anyway, and a draw has half as much to read.

    Args:
        weights: where the draws come from.
        twin: the network in evaluation mode.
        buffers: its running statistics, by name.
        compiled: compile what is done for each channel.

    Raises:
        UnsupportedError: with the reason, if the folds cannot be done like this.
    """

    folded = True

    def __init__(self, weights: DrawnWeights, twin: FusedNet, buffers: Mapping[str, Tensor], compiled: bool) -> None:
        folds = twin.folds
        if not folds:
            raise UnsupportedError("there is no normalisation to fold")
        if not weights.all_random:
            raise UnsupportedError("some of the parameters are not random")
        if len({(fold.affine, fold.has_bias) for fold in folds}) > 1:
            raise UnsupportedError("some normalisations or convolutions have parameters that others lack")
        self._matrices, self._vectors = weights.matrices, weights.vectors
        self._fused_net, self._folds, self._buffers = twin, folds, buffers
        norms = {fold.norm for fold in folds}
        self._rest = {name: tensor for name, tensor in buffers.items() if name.rpartition(".")[0] not in norms}
        first = folds[0]
        self._gamma, self._beta, self._bias = (
            self._positions([f"{fold.norm}.weight" for fold in folds]) if first.affine else None,
            self._positions([f"{fold.norm}.bias" for fold in folds]) if first.affine else None,
            self._positions([fold.bias for fold in folds]) if first.has_bias else None,
        )
        self._scaled = {}
        channel = 0
        for fold in folds:
            self._scaled[fold.weight] = channel
            channel += fold.channels
        self._fold, self._round = _scale_and_shift, _rounded
        if compiled:
            self._fold, self._round = compiled_apart(_scale_and_shift), compiled_apart(_rounded)

    def refresh(self) -> None:
        """Follow parameters and statistics after an update."""
        self._mean = torch.cat([self._buffers[f"{fold.norm}.running_mean"] for fold in self._folds])
        variances = [self._buffers[f"{fold.norm}.running_var"] + fold.eps for fold in self._folds]
        self._inverse_std = torch.cat(variances).rsqrt()
        self._matrices.prepare_scaled_draws(self._scaled, self._round)

    def draw(self, seed: Tensor, stream: int) -> dict[str, Tensor]:
        """The weights of one draw, for a twin that is called with `folded=True`."""
        vectors = self._vectors.draw_flat(seed, stream)
        scale, shift = self._fold(
            vectors, self._gamma, self._beta, self._bias, self._mean, self._inverse_std, self._matrices.dtype
        )
        shifts = shift.split([fold.channels for fold in self._folds])
        drawn = self._matrices.draw_scaled(scale, seed, stream)
        tensors = self._fused_net.placed({**self._rest, **self._vectors.by_name(vectors), **drawn})
        for fold, part in zip(self._folds, shifts, strict=True):
            tensors[fold.bias] = part
            for name in (f"{fold.norm}.weight", f"{fold.norm}.bias"):
                tensors.pop(name, None)
        return tensors

    def _positions(self, names: Sequence[str]) -> Tensor:
        """Where the numbers of these vectors are among those of all vectors."""
        extents = self._vectors.extents
        pieces = [torch.arange(*extents[name]) for name in names]
        return torch.cat(pieces).to(self._vectors.device)


def _scale_and_shift(
    vectors: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inverse_std: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """f = gamma / sqrt(v + eps) and f (b - m) + beta of all channels, the latter in `dtype`; see `normalised.fold`."""
    scale = inverse_std if gamma is None else vectors[gamma] * inverse_std
    shift = -mean * scale if bias is None else (vectors[bias] - mean) * scale
    return scale, (shift if beta is None else shift + vectors[beta]).to(dtype)


def _rounded(mu: Tensor, s: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return mu.to(dtype), s.exp().to(dtype)
