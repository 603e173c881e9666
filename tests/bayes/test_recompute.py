"""Activation checkpointing under sampled weights: refused inside the network, right around it."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.recompute import refusing_checkpointing


class Checkpointed(nn.Module):
    """A network that recomputes its first layer during the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(3, 4), nn.Linear(4, 2), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(checkpoint(self.first, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [True, False])
def test_refused_inside_the_network_and_fine_again_afterwards(reentrant: bool) -> None:
    net, x = Checkpointed(reentrant), torch.rand(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="activation checkpointing.*switch it off"):
        bayesianize(net)(x)
    net(x).sum().backward()  # the plain network may go on using it
    assert x.grad is not None


def test_checkpointing_the_whole_network_gives_the_right_gradient() -> None:
    bnn = bayesianize(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    x = torch.rand(2, 3, requires_grad=True)
    torch.manual_seed(0)
    checkpoint(bnn, x, use_reentrant=False).sum().backward()
    grads = [p.grad.clone() for p in bnn.parameters()]
    bnn.zero_grad()
    torch.manual_seed(0)
    bnn(x).sum().backward()
    for ours, p in zip(grads, bnn.parameters(), strict=True):
        torch.testing.assert_close(ours, p.grad)


def test_other_threads_are_not_disturbed() -> None:
    outcome = []

    def other() -> None:
        x = torch.rand(2, 3, requires_grad=True)
        checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
        outcome.append(x.grad is not None)

    with refusing_checkpointing(), refusing_checkpointing():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert outcome == [True]
