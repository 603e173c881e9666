"""Adversarial weight perturbation (AWP; Wu et al., 2020): minimise the loss at the worst weights nearby.

It flattens the loss around the weights, which narrows the gap between robust training and test accuracy:

    with perturbed(model, lambda: loss(model(x_adv), y), rho=5e-3):
        loss(model(x_adv), y).backward()
    optimizer.step()
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from advbnn.bayes.protocol import gaussian_parameters
from advbnn.errors import ArgumentError
from advbnn.training.averaging import restored


@contextmanager
def perturbed(model: nn.Module, loss_fn: Callable[[], Tensor], rho: float = 5e-3) -> Iterator[None]:
    """Within the block, the weights are one ascent step up the loss; afterwards they are restored, bit for bit.

        w_l <- w_l + rho * ||w_l|| * g_l / ||g_l||,    g_l = gradient of the loss in w_l

    for each trainable parameter with two dimensions or more. Biases, normalisation scales and the log standard
    deviations of a Bayesian network do not move. Run the backward pass inside the block, and the optimizer after it.
    The ascent step changes neither `.grad` nor buffers (running statistics). The authors' code restores the weights
    after the optimizer, so that weight decay sees the perturbed ones: a difference of rho times the decay.

    `loss_fn` computes the loss with the current weights, once. A random network samples its noise there and again in
    the block, unless both have the same seed. rho is called gamma in the paper.
    """
    weights = perturbable(model)
    with restored(model.buffers()), torch.enable_grad():
        gradients = torch.autograd.grad(loss_fn(), weights, allow_unused=True)
    with restored(weights):
        moved = [(w, g) for w, g in zip(weights, gradients, strict=True) if g is not None]
        climb([w for w, _ in moved], [g for _, g in moved], rho)
        yield


def perturbable(model: nn.Module) -> list[Tensor]:
    """The weights that move: trainable, with two dimensions or more, and no log standard deviations."""
    spreads = {id(parameter.log_std) for parameter in gaussian_parameters(model)}
    weights: list[Tensor] = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2 and id(p) not in spreads]
    if not weights:
        raise ArgumentError("model has no trainable parameter with two dimensions or more, so nothing to perturb")
    return weights


@torch.no_grad()
def climb(weights: list[Tensor], gradients: list[Tensor], rho: float) -> None:
    """Move each weight by rho of its norm along its gradient; a zero gradient gives no step."""
    if not weights:
        return
    lengths = [norm.clamp_min(1e-12) for norm in torch._foreach_norm(gradients)]
    sizes = torch._foreach_div(torch._foreach_norm(weights), lengths)
    torch._foreach_mul_(sizes, rho)
    torch._foreach_add_(weights, torch._foreach_mul(gradients, sizes))
