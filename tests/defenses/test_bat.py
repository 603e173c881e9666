from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from advbnn.bayes.modes import Modes
from advbnn.defenses.bat import PUBLISHED, WEIGHTS


def test_the_protocol_attacks_the_loss_of_both_networks_by_their_probabilities() -> None:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval() for _ in range(2)]
    x, y, attack = torch.rand(6, 1, 8, 8), torch.arange(6), replace(PUBLISHED.protocol.attack, steps=1)
    inside = 0.5 * x + 0.25  # away from the box

    def step(first: float) -> torch.Tensor:
        leaf = inside.clone().requires_grad_()
        losses = [functional.cross_entropy(net(leaf), y, reduction="sum") for net in nets]
        (gradient,) = torch.autograd.grad(first * losses[0] + (1 - first) * losses[1], leaf)
        return inside + 2 / 255 * gradient.sign()

    torch.testing.assert_close(attack(Modes(nets, WEIGHTS), inside, y, seed=0), step(0.9))
    assert not torch.equal(step(0.9), step(0.5))
