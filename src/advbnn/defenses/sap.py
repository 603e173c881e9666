"""Stochastic activation pruning (Dhillon et al., ICLR 2018): small activations are dropped at random; no training."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.attacks import FGSM
from advbnn.attacks.threat import Threat
from advbnn.defenses.published import EVERY_PASS, AuthorsProtocol, Published
from advbnn.defenses.surgery import has_layer, replaced
from advbnn.errors import within


@dataclass(frozen=True, kw_only=True)
class ActivationPruning:
    """Every ReLU followed by `PruneActivations`."""

    kind = "sap"
    fraction: float = 1.0

    def __post_init__(self) -> None:
        within("fraction", self.fraction, "(0, 1e6]", "it is the number of draws per activation")

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, PruneActivations):
            return net
        return replaced(net, nn.ReLU, lambda _, relu: nn.Sequential(relu, PruneActivations(self.fraction)))


class PruneActivations(nn.Module):
    """h_i / q_i with probability q_i = 1 - (1 - p_i)^r, else 0, for p_i = |h_i| / sum |h|, r = fraction * numel.

    q_i is the probability that i is among r draws from p, as in the source; activations are kept independently here.
    Fresh for every example and pass. The mask is a constant in the gradient.
    """

    def __init__(self, fraction: float = 1.0) -> None:
        super().__init__()
        self.fraction = fraction

    def forward(self, h: Tensor) -> Tensor:
        flat = h.detach().flatten(1).abs().float()
        p = flat / flat.sum(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
        # log1p and expm1 keep the digits of small probabilities
        keep = -torch.expm1(self.fraction * flat.shape[1] * torch.log1p(-p))
        kept = torch.rand(keep.shape, device=h.device) < keep
        scale = torch.where(kept, 1 / keep.clamp_min(torch.finfo(keep.dtype).tiny), 0)
        return h * scale.to(h.dtype).view_as(h)


PUBLISHED = Published(
    name="sap",
    title="Stochastic activation pruning",
    paper="Dhillon et al., Stochastic Activation Pruning for Robust Adversarial Defense",
    venue="ICLR 2018",
    code="https://github.com/Guneet-Dhillon/Stochastic-Activation-Pruning",
    network=ActivationPruning(),
    random="which activations are pruned",
    redrawn=EVERY_PASS,
    shared=False,
    trained=False,
    baseline="none",
    samples=100,
    protocol=AuthorsProtocol(FGSM(Threat("linf", 8 / 255), eot=100), passes=100),
    differences=(
        "activations are kept independently, with the probabilities of the source",
        "the source's attack has batch statistics, here running ones",
        "the repository states no accuracy; those of the paper could not be confirmed",
    ),
)
