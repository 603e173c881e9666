"""Max-pooling of our networks against torch's."""

import pytest
import torch
from torch import nn

from advbnn.models.pooling import MaxPool2x2

SHAPES = [(3, 4, 8, 8), (2, 1, 2, 6), (2, 3, 5, 7), (4, 6, 6), (0, 3, 4, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("differentiated", [False, True])
def test_it_pools_as_torch_does(shape: tuple[int, ...], differentiated: bool) -> None:
    x = torch.randn(shape).relu()  # with equal pixels
    found = []
    for pool in (MaxPool2x2(), nn.MaxPool2d(2)):
        leaf = x.clone().requires_grad_(differentiated)
        outputs = pool(leaf)
        gradient = torch.autograd.grad(outputs.square().sum(), leaf)[0] if differentiated else x
        found.append((outputs.detach(), gradient))
    assert all(ours.equal(theirs) for ours, theirs in zip(*found, strict=True))


def test_what_is_not_a_number_stays_so() -> None:
    x = torch.tensor([[[[torch.nan, 1.0, 2.0, torch.inf], [0.0, 3.0, -1.0, 0.5]]]])
    torch.testing.assert_close(MaxPool2x2()(x), nn.MaxPool2d(2)(x), equal_nan=True)
