"""Max-pooling of our networks against torch's."""

import pytest
import torch
import torch.fx
from torch import nn

from advbnn.models.pooling import MaxPool2x2

SHAPES = [(3, 4, 8, 8), (2, 1, 2, 6), (2, 3, 5, 7), (4, 6, 6), (0, 3, 4, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("gradients", [False, True])
def test_it_pools_as_torch_does(shape: tuple[int, ...], gradients: bool) -> None:
    x = torch.randn(shape).relu()  # with equal pixels
    found = []
    with torch.set_grad_enabled(gradients):
        for pool in (MaxPool2x2(), nn.MaxPool2d(2)):
            leaf = x.clone().requires_grad_(gradients)
            outputs = pool(leaf)
            slope = torch.autograd.grad(outputs.square().sum(), leaf)[0] if gradients else x
            found.append((outputs.detach(), slope))
    assert all(ours.equal(theirs) for ours, theirs in zip(*found, strict=True))


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 2, 4, 4), (2, 1, 0, 4)], ids=str)
@torch.no_grad()
def test_it_refuses_what_torch_refuses(shape: tuple[int, ...]) -> None:
    for pool in (MaxPool2x2(), nn.MaxPool2d(2)):
        with pytest.raises(RuntimeError):
            pool(torch.zeros(shape))


@torch.no_grad()
def test_it_is_traced_as_torch_does() -> None:
    net, x = nn.Sequential(MaxPool2x2(), nn.Flatten()), torch.randn(2, 3, 4, 6)
    expected = net(x)
    for form in (torch.fx.symbolic_trace(net), torch.func.vmap(lambda one: net[0](one).flatten())):
        assert form(x).equal(expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # which torch.func uses
def test_a_forward_derivative_is_that_of_torch() -> None:
    x, direction = torch.zeros(1, 1, 2, 2), torch.arange(4.0).view(1, 1, 2, 2)  # equal pixels
    ours, theirs = (torch.func.jvp(pool, (x,), (direction,))[1] for pool in (MaxPool2x2(), nn.MaxPool2d(2)))
    assert ours.equal(theirs)


@torch.no_grad()
def test_what_is_not_a_number_stays_so() -> None:
    x = torch.tensor([[[[torch.nan, 1.0, 2.0, torch.inf], [0.0, 3.0, -1.0, 0.5]]]])
    torch.testing.assert_close(MaxPool2x2()(x), nn.MaxPool2d(2)(x), equal_nan=True)
