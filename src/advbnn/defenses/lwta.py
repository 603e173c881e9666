"""Stochastic local winner-takes-all (Panousis et al., 2021): units of a block compete at random, without ReLU."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.defenses.authors_training import AuthorsTraining
from advbnn.defenses.optimizers import SGDOptimizer
from advbnn.defenses.published import EVERY_PASS, AuthorsProtocol, Claim, Published
from advbnn.defenses.schedules import Stages
from advbnn.defenses.surgery import has_layer, replaced
from advbnn.errors import ArgumentError, positive_whole, within


@dataclass(frozen=True, kw_only=True)
class WinnerTakesAll:
    """Every ReLU replaced by a `StochasticLWTA`."""

    kind = "lwta"
    block: int = 2
    temperature: float = 0.67
    sharp: float = 0.01

    def __post_init__(self) -> None:
        positive_whole("block", self.block)
        for name in ("temperature", "sharp"):
            within(name, getattr(self, name), "(0, 1e6]")

    def wrap(self, net: nn.Module) -> nn.Module:
        if has_layer(net, StochasticLWTA):
            return net
        return replaced(net, nn.ReLU, lambda *_: StochasticLWTA(self.block, self.temperature, self.sharp))


class StochasticLWTA(nn.Module):
    """x * softmax((x + g) / T) within blocks of channels, g from the Gumbel distribution.

    The softmax is a sample of the winner, softened. T = `temperature` in training and `sharp` in evaluation, where
    nearly one unit of a block remains and gradients vanish: an attack needs the soft form in its backward pass. Fresh
    for every example, position and pass.
    """

    def __init__(self, block: int = 2, temperature: float = 0.67, sharp: float = 0.01) -> None:
        super().__init__()
        self.block, self.temperature, self.sharp = block, temperature, sharp

    def forward(self, x: Tensor) -> Tensor:
        return self._competition(x, self.temperature if self.training else self.sharp)

    def straight_through(self, x: Tensor) -> Tensor:
        """The form whose gradient an attack uses: the temperature of training."""
        return self._competition(x, self.temperature)

    def _competition(self, x: Tensor, temperature: float) -> Tensor:
        if x.shape[1] % self.block:
            raise ArgumentError(f"block={self.block} must divide the number of channels, {x.shape[1]}")
        blocks = x.unflatten(1, (-1, self.block))
        # g = -log(-log u); in place, as each operation is a pass over activations of all images
        minus_gumbel = torch.rand(blocks.shape, device=x.device).clamp_(1e-10, 1 - 1e-7).log_().neg_().log_()
        winners = ((blocks - minus_gumbel.to(x.dtype)) / temperature).softmax(2)
        result: Tensor = (blocks * winners).flatten(1, 2)
        return result

    def extra_repr(self) -> str:
        return f"block={self.block}, temperature={self.temperature}, sharp={self.sharp}"


PUBLISHED = Published(
    name="lwta",
    title="Stochastic local winner-takes-all",
    paper="Panousis, Chatzis & Theodoridis, Stochastic Local Winner-Takes-All Networks Enable Profound "
    "Adversarial Robustness",
    venue="NeurIPS 2021 workshop on Bayesian Deep Learning",
    code="https://github.com/konpanousis/Adversarial-LWTA-AutoAttack",
    network=WinnerTakesAll(),
    random="which unit of each block passes its activation on",
    redrawn=EVERY_PASS,
    shared=False,
    protocol=AuthorsProtocol(PGD(Threat("linf", 0.031), steps=20, step_size=0.003, random_start=True)),
    training=AuthorsTraining(
        attack=PGD(Threat("linf", 0.031), steps=10, step_size=0.007, random_start=False),
        optimizer=SGDOptimizer(lr=0.1, momentum=0.9, weight_decay=2e-4),
        # half the rate in every epoch from the 75th on
        schedule=Stages(epochs=(74, *[1] * 76), factor=0.5, fresh_optimizer=False),
        differences=(
            "ResNet-18; the source has WRN-34",
            "the training attack starts at the image; in the source at Gaussian noise of 0.001 around it",
        ),
    ),
    claims=(
        Claim("APGD-CE of AutoAttack standard", 87.9, 90.9, "WRN-34-5", "log in the repository"),
        Claim("AutoAttack", 82.6, 92.3, "WRN-34-10", "benchmark lists that quote the paper", quoted=True),
        Claim("APGD-CE and DLR of AutoAttack rand", 76.1, 86.6, "WRN-34-5", "log in the repository"),
    ),
    differences=(
        "the protocol is that of the source's training script; its numbers are by AutoAttack on fresh passes",
        "WRN-34 there, with a BatchNorm before every competition; here some follow a residual sum",
        "the KL of the competition is computed in the source, and not part of its loss",
    ),
)
