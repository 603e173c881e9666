"""The weights of a fast training step: sampled for every pass, or the network's own, cast once.

Both give a `FusedNet` its tensors by name: matrices in the precision of the computation, vectors (biases, BatchNorm)
in float32. Both return the gradients of those tensors to the parameters.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.bayes.priors import GaussianPrior, choose, std_for
from advbnn.bayes.protocol import RandomNetwork
from advbnn.errors import UnsupportedError
from advbnn.fast.compiling import compile_separately
from advbnn.fast.philox import normals

_Entry = tuple[str, nn.Parameter, nn.Parameter]
_Rounding = Callable[[Tensor, Tensor, torch.dtype], tuple[Tensor, Tensor]]


class FixedWeights:
    """Deterministic weights: `refresh` casts them once for all passes of a step."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], precision: torch.dtype) -> None:
        self.parameters, self.precision = dict(parameters), precision
        self.values: dict[str, Tensor] = {}
        self._grads = [torch.zeros_like(p) for p in self.parameters.values()]

    def refresh(self) -> None:
        """Follow the parameters after an update."""
        self.values = {
            name: parameter.detach().to(self.precision if parameter.dim() > 1 else torch.float32)
            for name, parameter in self.parameters.items()
        }

    def sample(self, seed: Tensor, stream: int) -> dict[str, Tensor]:
        return dict(self.values)

    def backward(self, grads: Mapping[str, Tensor], seed: Tensor, stream: int, factor: Tensor, first: bool) -> None:
        """Add the gradients of one pass to the parameters; the first pass of an update replaces theirs."""
        if not self.parameters:
            return
        arrived = [grads[name] for name in self.parameters]
        if first:
            torch._foreach_copy_(self._grads, arrived)
        else:
            torch._foreach_add_(self._grads, [g.to(kept.dtype) for g, kept in zip(arrived, self._grads, strict=True)])
        for parameter, grad in zip(self.parameters.values(), self._grads, strict=True):
            parameter.grad = grad

    def kl(self) -> Tensor | None:
        return None


class SampledWeights:
    """Weights with a Gaussian posterior, sampled by counter-based noise: all matrices at once, then all vectors.

    Args:
        bnn: the network.
        precision: type of the matrices.
        kl_weight: alpha / N by the parameter's name, 0 for parameters outside the scope of the KL. The prior must then
            be a `GaussianPrior` with a number for each parameter. None leaves the KL to a `PriorTerm`.
        compiled: compile the noise; on a GPU it has its own kernel.
    """

    def __init__(
        self,
        bnn: RandomNetwork,
        precision: torch.dtype,
        kl_weight: Callable[[str], float] | None,
        compiled: bool = False,
    ) -> None:
        self._kl_weight = kl_weight
        random = list(bnn.posterior())
        names = {name for name, _, _ in random}
        self._fixed = FixedWeights({n: p for n, p in bnn.net.named_parameters() if n not in names}, precision)
        matrices, vectors = ([entry for entry in random if (entry[1].dim() > 1) is wanted] for wanted in (True, False))
        self.matrices = _Group(matrices, precision, 0, _runs(bnn, matrices, kl_weight), compiled)
        start = -(-self.matrices.size // 4) * 4
        self.vectors = _Group(vectors, torch.float32, start, _runs(bnn, vectors, kl_weight), compiled)
        self._groups = [group for group in (self.matrices, self.vectors) if group.size]

    @property
    def all_random(self) -> bool:
        """Whether every parameter of the network is random, and there are both vectors and matrices."""
        return len(self._groups) == 2 and not self._fixed.parameters

    def refresh(self) -> None:
        """Follow the parameters after an update."""
        self._fixed.refresh()
        for group in self._groups:
            group.refresh()

    def sample(self, seed: Tensor, stream: int) -> dict[str, Tensor]:
        """w = mu + exp(s) * eps with the noise of (seed, stream), and the deterministic weights."""
        weights = self._fixed.sample(seed, stream)
        for group in self._groups:
            weights.update(group.by_name(group.sample_flat(seed, stream)))
        return weights

    def backward(self, grads: Mapping[str, Tensor], seed: Tensor, stream: int, factor: Tensor, first: bool) -> None:
        """Add the gradients of one sample (eq. 11) to the parameters; the first adds `factor` times the KL gradient."""
        self._fixed.backward(grads, seed, stream, factor, first)
        for group in self._groups:
            group.backward([grads[name] for name in group.names], seed, stream, factor, first)

    def kl(self) -> Tensor | None:
        """KL(q || p) of the parameters inside the scope, without its weight (eq. 6); None if it is not closed here."""
        return None if self._kl_weight is None else torch.stack([group.kl() for group in self._groups]).sum()


@dataclass(frozen=True)
class _Run:
    """Consecutive entries of the flat vector with the same prior and the same weight of the KL."""

    begin: int
    end: int
    prior_std: float
    prior_mean: float
    kl_weight: float


class _Group:
    """Random parameters side by side in flat memory, each in its own memory order."""

    def __init__(
        self, entries: Sequence[_Entry], dtype: torch.dtype, start: int, runs: list[_Run], compiled: bool
    ) -> None:
        self.names = [name for name, _, _ in entries]
        self.size = sum(mu.numel() for _, mu, _ in entries)
        self._means, self._log_stds = [mu for _, mu, _ in entries], [s for _, _, s in entries]
        self.dtype, self._start, self._runs = dtype, start, runs
        self.device = self._means[0].device if self._means else torch.device("cpu")
        ends = list(itertools.accumulate(mu.numel() for mu in self._means))
        self.extents = dict(zip(self.names, zip([0, *ends], ends, strict=False), strict=True))
        flat = [torch.zeros(self.size, dtype=torch.float32, device=self.device) for _ in range(4)]
        self._mu, self._s, self._grad_mu, self._grad_s = flat
        self._normals = compile_separately(normals, fullgraph=True) if compiled else normals
        self._rows: list[tuple[int, int, int]] | None = None
        self._blocks: Tensor | None = None

    def refresh(self) -> None:
        torch.cat([_in_memory_order(mu.detach(), mu) for mu in self._means], out=self._mu)
        torch.cat([_in_memory_order(s.detach(), s) for s in self._log_stds], out=self._s)

    def sample_flat(self, seed: Tensor, stream: int) -> Tensor:
        if self._mu.is_cuda:
            from advbnn.fast import triton_kernels

            return triton_kernels.sample(
                self._mu, self._s, seed=seed, stream=stream, start=self._start, dtype=self.dtype
            )
        return (self._mu + self._s.exp() * self._noise(seed, stream)).to(self.dtype)

    def prepare_scaled_samples(self, first_scale: Mapping[str, int], rounded: _Rounding) -> None:
        """Round for the samples of a step; `first_scale` is the scale index of each scaled matrix's first row."""
        self._rounded = rounded(self._mu, self._s, self.dtype)
        if self._rows is None:
            shapes = {name: (len(mu), mu.numel() // len(mu)) for name, mu in zip(self.names, self._means, strict=True)}
            self._rows = [(*shapes[name], first_scale.get(name, -1)) for name in self.names]

    def sample_scaled(self, scale: Tensor, seed: Tensor, stream: int) -> dict[str, Tensor]:
        """scale * (mu + sigma * eps), with a scale for each row of each scaled matrix."""
        mu, std = self._rounded
        assert self._rows is not None
        if mu.is_cuda:
            from advbnn.fast import triton_kernels

            if self._blocks is None:
                self._blocks = triton_kernels.blocks_of(self._rows, self.device)
            flat = triton_kernels.sample_scaled(
                mu, std, scale, self._blocks, seed=seed, stream=stream, start=self._start, dtype=self.dtype
            )
            return self.by_name(flat)
        scales = [
            scale.new_ones(count * length) if first < 0 else scale[first : first + count].repeat_interleave(length)
            for count, length, first in self._rows
        ]
        return self.by_name((torch.cat(scales) * (mu + std * self._noise(seed, stream))).to(self.dtype))

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.names, self._views(flat), strict=True))

    def backward(self, grads: list[Tensor], seed: Tensor, stream: int, factor: Tensor, first: bool) -> None:
        grad = torch.cat([_in_memory_order(g, mu) for g, mu in zip(grads, self._means, strict=True)])
        for run in self._runs:
            part = slice(run.begin, run.end)
            self._backward_run(run, grad[part], part, seed, stream, factor, first)
        for parameters, flat in ((self._means, self._grad_mu), (self._log_stds, self._grad_s)):
            for parameter, view in zip(parameters, self._views(flat), strict=True):
                parameter.grad = view

    def kl(self) -> Tensor:
        total = self._mu.new_zeros(())
        for run in self._runs:
            if run.kl_weight:
                prior, part = GaussianPrior(run.prior_std, run.prior_mean), slice(run.begin, run.end)
                total = total + prior.kl("", self._mu[part], self._s[part])
        return total

    def _backward_run(
        self, run: _Run, grad: Tensor, part: slice, seed: Tensor, stream: int, factor: Tensor, first: bool
    ) -> None:
        mu, s, grad_mu, grad_s = self._mu[part], self._s[part], self._grad_mu[part], self._grad_s[part]
        weight = run.kl_weight if first else 0.0
        if grad.is_cuda:
            from advbnn.fast import triton_kernels

            triton_kernels.sample_backward(
                grad, mu, s, grad_mu, grad_s, seed=seed, stream=stream, start=self._start + run.begin, weight=weight,
                factor=factor, prior_std=run.prior_std, prior_mean=run.prior_mean, add=not first,
            )  # fmt: skip
            return
        std, precision, share = s.exp(), run.prior_std**-2, weight * factor
        by_mu = grad.float() + share * precision * (mu - run.prior_mean)
        by_s = grad.float() * std * self._noise(seed, stream)[part] + share * (precision * std**2 - 1)
        for kept, arrived in ((grad_mu, by_mu), (grad_s, by_s)):
            kept.copy_(arrived if first else kept + arrived)

    def _noise(self, seed: Tensor, stream: int) -> Tensor:
        # as tensors, so that a compiler does not specialize on each seed and stream
        which = {"seed": seed, "stream": torch.tensor(stream, device=seed.device)}
        return self._normals(self.size, start=self._start, device=self.device, **which)

    def _views(self, flat: Tensor) -> list[Tensor]:
        pieces = flat.split([mu.numel() for mu in self._means])
        return [_as_in_memory(piece, mu) for piece, mu in zip(pieces, self._means, strict=True)]


def _runs(bnn: RandomNetwork, entries: Sequence[_Entry], kl_weight: Callable[[str], float] | None) -> list[_Run]:
    prior = bnn.prior
    if kl_weight is None:
        return [_Run(0, sum(mu.numel() for _, mu, _ in entries), 1.0, 0.0, 0.0)]
    if not isinstance(prior, GaussianPrior):
        raise UnsupportedError(f"the KL to a {type(prior).__name__} has no closed form")
    runs: list[_Run] = []
    position = 0
    for name, mu, _ in entries:
        std, mean = std_for("prior std", prior.std, name, mu), choose(prior.mean, name, mu, default=0.0)
        if isinstance(std, Tensor) or isinstance(mean, Tensor):
            raise UnsupportedError(f"the prior of {name!r} differs from weight to weight")
        run = _Run(position, position + mu.numel(), std, mean, kl_weight(name))
        # a run must start on a whole counter of the noise
        joins = runs and (std, mean, run.kl_weight) == (runs[-1].prior_std, runs[-1].prior_mean, runs[-1].kl_weight)
        if joins:
            runs[-1] = _Run(runs[-1].begin, run.end, std, mean, run.kl_weight)
        elif position % 4:
            raise UnsupportedError(f"the prior changes at {name!r}, in the middle of a counter of the noise")
        else:
            runs.append(run)
        position = run.end
    return runs


def _is_channels_last(parameter: Tensor) -> bool:
    return parameter.dim() == 4 and not parameter.is_contiguous()


def _in_memory_order(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A tensor flattened in the memory order of the parameter."""
    return (tensor.permute(0, 2, 3, 1) if _is_channels_last(parameter) else tensor).reshape(-1)


def _as_in_memory(flat: Tensor, parameter: Tensor) -> Tensor:
    """A view of `flat` with the shape and the memory order of the parameter."""
    if _is_channels_last(parameter):
        n, c, h, w = parameter.shape
        return flat.view(n, h, w, c).permute(0, 3, 1, 2)
    return flat.view(parameter.shape)
