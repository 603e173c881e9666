"""The weights of an attack, with BatchNorm folded into the convolutions of a `FusedNet`.

Fixed weights are folded once per step. Random weights are scaled as they are sampled, in one pass over memory. Where
neither applies, the `FusedNet` folds them itself at every pass.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from advbnn.errors import UnsupportedError
from advbnn.fast.compiling import compile_separately
from advbnn.fast.fused_net import FusedNet
from advbnn.fast.weights import FixedWeights, SampledWeights


class UnfoldedWeights:
    """Weights and statistics as they are; a `FusedNet` in training mode changes the statistics."""

    folded = False

    def __init__(self, weights: FixedWeights | SampledWeights, buffers: Mapping[str, Tensor]) -> None:
        self._weights, self._buffers = weights, buffers

    def refresh(self) -> None:
        """Nothing to do."""

    def sample(self, seed: Tensor, stream: int) -> dict[str, Tensor]:
        return {**self._weights.sample(seed, stream), **self._buffers}


class _FoldedFixedWeights:
    folded = True

    def __init__(self, weights: FixedWeights, fused_net: FusedNet, buffers: Mapping[str, Tensor]) -> None:
        self._weights, self._fused_net, self._buffers = weights, fused_net, buffers

    def refresh(self) -> None:
        self._tensors = self._fused_net.fold({**self._weights.values, **self._buffers})

    def sample(self, seed: Tensor, stream: int) -> dict[str, Tensor]:
        return self._tensors


class FoldedSamples:
    """Weight samples with BatchNorm folded in.

    The factor gamma / sqrt(v + eps) of a channel depends only on the sampled gamma and the running variance, so
    vectors are sampled first. Means and standard deviations of the matrices are rounded to the precision of the
    computation once per step: the sampled weight is rounded anyway, and a sample has half as much to read.

    Raises:
        UnsupportedError: with the reason, if BatchNorm cannot be folded like this.
    """

    folded = True

    def __init__(
        self, weights: SampledWeights, fused_net: FusedNet, buffers: Mapping[str, Tensor], compiled: bool
    ) -> None:
        folds = fused_net.folds
        if not folds:
            raise UnsupportedError("there is no BatchNorm to fold")
        if any(fold.computed for fold in folds):
            raise UnsupportedError("some weights are computed in every pass")
        if not weights.all_random:
            raise UnsupportedError("some of the parameters are not random")
        if len({fold.has for fold in folds}) > 1:
            raise UnsupportedError("some BatchNorms or convolutions have parameters that others do not have")
        self._matrices, self._vectors = weights.matrices, weights.vectors
        self._fused_net, self._folds, self._buffers = fused_net, folds, buffers
        norms = {fold.norm for fold in folds}
        self._rest = {name: tensor for name, tensor in buffers.items() if name.rpartition(".")[0] not in norms}
        gamma, beta, bias = folds[0].has
        self._gamma, self._beta, self._bias = (
            self._positions([f"{fold.norm}.weight" for fold in folds]) if gamma else None,
            self._positions([f"{fold.norm}.bias" for fold in folds]) if beta else None,
            self._positions([fold.bias for fold in folds]) if bias else None,
        )
        self._first_scale = {}
        channel = 0
        for fold in folds:
            self._first_scale[fold.weight] = channel
            channel += fold.channels
        self._fold, self._round = _scale_and_shift, _rounded
        if compiled:
            self._fold, self._round = compile_separately(_scale_and_shift), compile_separately(_rounded)

    def refresh(self) -> None:
        self._mean = torch.cat([self._buffers[f"{fold.norm}.running_mean"] for fold in self._folds])
        variances = [self._buffers[f"{fold.norm}.running_var"] + fold.eps for fold in self._folds]
        self._inverse_std = torch.cat(variances).rsqrt()
        self._matrices.prepare_scaled_samples(self._first_scale, self._round)

    def sample(self, seed: Tensor, stream: int) -> dict[str, Tensor]:
        vectors = self._vectors.sample_flat(seed, stream)
        scale, shift = self._fold(
            vectors, self._gamma, self._beta, self._bias, self._mean, self._inverse_std, self._matrices.dtype
        )
        shifts = shift.split([fold.channels for fold in self._folds])
        matrices = self._matrices.sample_scaled(scale, seed, stream)
        tensors = self._fused_net.placed({**self._rest, **self._vectors.by_name(vectors), **matrices})
        for fold, part in zip(self._folds, shifts, strict=True):
            tensors[fold.bias] = part
            for name in (f"{fold.norm}.weight", f"{fold.norm}.bias"):
                tensors.pop(name, None)
        return tensors

    def _positions(self, names: Sequence[str]) -> Tensor:
        """Positions of these vectors in the flat memory of all vectors."""
        extents = self._vectors.extents
        return torch.cat([torch.arange(*extents[name]) for name in names]).to(self._vectors.device)


AttackWeights = UnfoldedWeights | _FoldedFixedWeights | FoldedSamples
"""`sample` returns all tensors of one pass, and `folded` is an argument of `FusedNet.__call__`. `refresh` follows an
update, after the step's own weights."""


def attack_weights(
    weights: FixedWeights | SampledWeights, fused_net: FusedNet, buffers: Mapping[str, Tensor], compiled: bool
) -> AttackWeights:
    """The weights of an attack in the fastest form that applies, for a network in evaluation mode and its `buffers`.

    If `compiled`, the small computations in between are.
    """
    if isinstance(weights, FixedWeights):
        return _FoldedFixedWeights(weights, fused_net, buffers)
    try:
        return FoldedSamples(weights, fused_net, buffers, compiled)
    except UnsupportedError:
        return UnfoldedWeights(weights, buffers)


def _scale_and_shift(
    vectors: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inverse_std: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """f = gamma / sqrt(v + eps) and f (b - m) + beta of all channels, the latter in `dtype`, as in `conv_bn`."""
    scale = inverse_std if gamma is None else vectors[gamma] * inverse_std
    shift = -mean * scale if bias is None else (vectors[bias] - mean) * scale
    return scale, (shift if beta is None else shift + vectors[beta]).to(dtype)


def _rounded(mu: Tensor, s: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return mu.to(dtype), s.exp().to(dtype)
