"""RandLayer: weight samples whose backward pass includes the KL (appendix B).

Two forms of w = mu + exp(s) * eps. `rand_layer` is the paper's, for a single tensor; its backward pass adds the
gradient of the Gaussian KL. `sample_all` samples all tensors of a network from one noise vector with a few operations,
because sampling tensor by tensor costs more kernel launches than the network itself.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from advbnn.errors import ArgumentError


def rand_layer(
    mu: Tensor, s: Tensor, eps: Tensor | None = None, *, prior_std: float, weight: float, prior_mean: float = 0.0
) -> Tensor:
    """w = mu + exp(s) * eps; its backward pass adds `weight` times the gradient of KL(N(mu, exp(s)^2) || prior).

        dL/dmu = g                + weight * (mu - prior_mean) / prior_std^2
        dL/ds  = g * exp(s) * eps + weight * (exp(2 s) / prior_std^2 - 1)

    for the incoming gradient g. With weight = alpha / N and a loss averaged over the batch, one step is a step on
    the paper's objective (eq. 13) without computing the KL itself. The KL gradient enters once per backward pass
    through a sample: with several samples per update, divide `weight` by their number.
    `eps` is standard normal noise in the shape of mu; fresh when None. The paper's listing has weight = 1 / N.
    """
    eps = torch.randn_like(mu) if eps is None else eps
    if not mu.shape == s.shape == eps.shape:
        raise ArgumentError(f"mu, s and eps must have one shape, got {[tuple(t.shape) for t in (mu, s, eps)]}")
    if not prior_std > 0:
        raise ArgumentError(f"prior_std must be positive, got {prior_std}")
    if not weight >= 0:
        raise ArgumentError(f"weight must not be negative, got {weight}; it is alpha / N in the paper's objective")
    sample: Tensor = _RandLayer.apply(mu, s, eps, prior_std, weight, prior_mean)
    return sample


class _RandLayer(torch.autograd.Function):
    @staticmethod
    def forward(mu: Tensor, s: Tensor, eps: Tensor, prior_std: float, weight: float, prior_mean: float) -> Tensor:
        return mu + s.exp() * eps

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        mu, s, eps, ctx.prior_std, ctx.weight, ctx.prior_mean = inputs
        ctx.save_for_backward(mu, s, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mu, s, eps = ctx.saved_tensors
        std, precision = s.exp(), 1 / ctx.prior_std**2
        grad_mu = grad + ctx.weight * precision * (mu - ctx.prior_mean) if ctx.needs_input_grad[0] else None
        grad_s = grad * std * eps + ctx.weight * (precision * std**2 - 1) if ctx.needs_input_grad[1] else None
        grad_eps = grad * std if ctx.needs_input_grad[2] else None
        return grad_mu, grad_s, grad_eps, None, None, None


class Workspace:
    """One noise vector on the device with a view of it in the shape of every parameter.

    Views cost an operation per parameter, so they are made once. What a backward pass needs is saved separately.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        first = parameters[0]
        with torch.inference_mode(False):
            self.flat = torch.empty(sum(p.numel() for p in parameters), dtype=torch.float32, device=first.device)
            # the noise is float32 for every precision of the weights, so that one noise fits them all
            self.cast = self.flat if first.dtype == torch.float32 else self.flat.to(first.dtype)
            self.views = split_like(self.cast, parameters)

    def fits(self, parameters: Sequence[Tensor]) -> bool:
        """Whether the views have the device, type and shape of the parameters."""
        pairs = zip(parameters, self.views, strict=True)
        return all(p.device == v.device and p.dtype == v.dtype and p.shape == v.shape for p, v in pairs)

    def fill(self) -> None:
        self.flat.normal_()
        if self.cast is not self.flat:
            self.cast.copy_(self.flat)


def split_like(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Views of `flat`, one for each parameter and in its shape."""
    pieces = flat.split([p.numel() for p in parameters])
    return [piece.view(p.shape) for piece, p in zip(pieces, parameters, strict=True)]


def sample_all(means: Sequence[Tensor], log_stds: Sequence[Tensor], workspace: Workspace) -> list[Tensor]:
    """w = mu + exp(s) * eps for all parameters at once, with fresh noise; differentiable in mu and s.

    Each call saves its own copy of the noise, so any number of samples may precede one backward pass. Without
    gradients, as inside an attack, nothing is saved.
    """
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*means, *log_stds)):
        return list(_SampleAll.apply(workspace, len(means), *means, *log_stds))
    workspace.fill()
    return _combine(means, log_stds, workspace.views)


def _combine(means: Sequence[Tensor], log_stds: Sequence[Tensor], noise: list[Tensor]) -> list[Tensor]:
    # multiply, then add: a fused multiply-add rounds once instead of twice, and the same noise would no
    # longer give the same bits as mu + exp(s) * eps
    sample = torch._foreach_exp(list(log_stds))
    torch._foreach_mul_(sample, noise)
    torch._foreach_add_(sample, list(means))
    return list(sample)


class _SampleAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, workspace: Workspace, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        means, log_stds = tensors[:count], tensors[count:]
        workspace.fill()
        ctx.save_for_backward(workspace.flat.clone(), *log_stds)
        ctx.set_materialize_grads(False)
        return tuple(_combine(means, log_stds, workspace.views))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        noise, *log_stds = ctx.saved_tensors
        pieces = split_like(noise, log_stds)
        grad_stds = [
            None if grad is None else s.exp().mul_(grad).mul_(eps.to(s.dtype))
            for grad, s, eps in zip(grads, log_stds, pieces, strict=True)
        ]
        return None, None, *grads, *grad_stds
