"""The fused convolution and ReLU against the two operations."""

import torch
from torch.nn import functional

from advbnn.fast.conv_relu import conv_relu


def test_outputs_and_input_gradients_are_those_of_the_two_operations() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(4, 3, 3, 3).double(), torch.randn(4).double()
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64, requires_grad=True)

    def fused(z: torch.Tensor) -> torch.Tensor:
        return conv_relu(z, weight, bias, (2, 2), (1, 1), (1, 1), 1)

    torch.testing.assert_close(fused(x), functional.conv2d(x, weight, bias, stride=2, padding=1).relu())
    assert torch.autograd.gradcheck(fused, x)
    torch.library.opcheck(conv_relu, (x.detach(), weight, bias, [1, 1], [1, 1], [1, 1], 1), test_utils="test_schema")
