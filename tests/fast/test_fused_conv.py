"""Convolutions with a ReLU, and with what is added before it, against torch's operations."""

import operator
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn import models
from advbnn.fast import fused_conv
from advbnn.fast.fused_conv import FusedConv2d, Waiting, conv_relu, dense_convolution
from advbnn.fast.fused_net import FusedNet


@pytest.mark.parametrize("bias", [True, False])
def test_a_dense_convolution_of_2x2_images_equals_the_convolution(bias: bool) -> None:
    conv = nn.Conv2d(3, 5, 3, padding=1, bias=bias).double()
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    ours, theirs = dense_convolution(x, conv.weight, conv.bias), conv(x)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_images_keep_their_precision_in_the_first_convolution() -> None:
    fused_net = FusedNet(models.build("small_cnn", image_size=8, channels=1), torch.bfloat16, training=False)
    first = next(m for m in fused_net.structure.modules() if isinstance(m, nn.Conv2d))
    assert isinstance(first, FusedConv2d) and first.sees_images
    edge = FusedConv2d(1, 1, (1, 2), bias=False)
    edge.sees_images = True
    edge.weight.data.copy_(torch.tensor([1.0, -1.0]).view(1, 1, 1, 2))
    x = torch.tensor([0.75 + 2.0**-12, 0.75]).view(1, 1, 1, 2)  # an edge that bfloat16 pixels do not have
    with torch.autocast("cpu", torch.bfloat16):
        assert functional.conv2d(x, edge.weight).item() == 0
        assert edge(x).item() == 2.0**-12


def test_a_fused_convolution_and_relu_has_the_outputs_and_input_gradients_of_the_two() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(4, 3, 3, 3).double(), torch.randn(4).double()
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64, requires_grad=True)

    def fused(z: torch.Tensor) -> torch.Tensor:
        return conv_relu(z, weight, bias, None, (2, 2), (1, 1), (1, 1), 1)

    torch.testing.assert_close(fused(x), functional.conv2d(x, weight, bias, stride=2, padding=1).relu())
    assert torch.autograd.gradcheck(fused, x)
    torch.library.opcheck(
        conv_relu, (x.detach(), weight, bias, None, [1, 1], [1, 1], [1, 1], 1), test_utils="test_schema"
    )


def operands() -> tuple[Tensor, Tensor, Tensor, Any]:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64, requires_grad=True)
    return x, torch.randn(4, 3, 3, 3).double(), torch.randn(4).double(), ((2, 1), (1, 0), (1, 2), 1)


def test_a_sum_before_the_relu_is_differentiated_in_both_parts() -> None:
    x, weight, bias, geometry = operands()
    plain = functional.conv2d(x, weight, bias, *geometry)
    z = torch.randn_like(plain).requires_grad_()
    fused, expected = conv_relu(x, weight, bias, z, *geometry), (plain + z).relu()
    torch.testing.assert_close(fused, expected)
    for ours, theirs in zip(*(torch.autograd.grad(y.square().sum(), (x, z)) for y in (fused, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("added", [True, False])
def test_a_gpu_computes_the_same(added: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randn(n, 64, k, k) for n, k in ((8, 16), (32, 3)))
    z, bias = torch.randn(8, 32, 8, 8), torch.randn(32)
    geometry: Any = ((2, 2), (1, 1), (1, 1), 1)
    images = [t.to("cuda", dtype).contiguous(memory_format=torch.channels_last) for t in (x, weight, z)]
    on_gpu = conv_relu(images[0], images[1], bias.to("cuda", dtype), images[2] if added else None, *geometry)
    exact = [t.to(dtype).double() for t in (x, weight, bias)]
    expected = functional.conv2d(*exact, *geometry) + (z.to(dtype).double() if added else 0)
    # products of TF32 and bfloat16 have eight to ten bits; sums of 576 products of normals are about 24
    torch.testing.assert_close(on_gpu.double().cpu(), expected.relu(), rtol=2.0**-7, atol=24 * 2.0**-7)
    assert on_gpu.is_contiguous(memory_format=torch.channels_last)


USES: dict[str, Callable[[Any, Tensor], Any]] = {
    "relu": lambda y, z: functional.relu(y, inplace=True),
    "its method": lambda y, z: y.relu(),
    "a module": lambda y, z: nn.ReLU()(y),
    "a sum": lambda y, z: nn.ReLU()(y + z),
    "a sum the other way round": lambda y, z: torch.relu(z + y),
    "a function": lambda y, z: torch.relu(torch.add(z, y)),
    "in place": lambda y, z: torch.relu(operator.iadd(y, z)),
    "into the other": lambda y, z: torch.relu(operator.iadd(z.clone(), y)),
    "two sums": lambda y, z: torch.relu(y + z + z),
    "itself": lambda y, z: torch.relu(y + y),
    "a number": lambda y, z: torch.relu(y + 1),
    "broadcast": lambda y, z: torch.relu(y + z[:1, :, :1, :1]),
    "with a factor": lambda y, z: torch.relu(torch.add(z, y, alpha=2)),
    "something else": lambda y, z: torch.cat([y, z]).flatten(1).mean(1),
    "attributes": lambda y, z: y.view(len(z), -1) * y.shape[1],
}


@pytest.mark.parametrize("use", USES)
def test_a_convolution_that_waits_is_used_like_its_output(use: str) -> None:
    x, weight, bias, geometry = operands()
    output = functional.conv2d(x, weight, bias, *geometry)
    z = torch.randn_like(output)
    ours = USES[use](Waiting(x, weight, bias, geometry), z)
    theirs = USES[use](output.clone(), z)
    assert isinstance(ours, Tensor)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("into_shortcut", [True, False])
def test_a_residual_sum_and_its_relu_are_computed_with_the_convolution(into_shortcut: bool) -> None:
    class Block(nn.Module):
        """As in torchvision, with one ReLU for all places; the sum may also be written into the shortcut."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
            self.conv2, self.bn2 = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            shortcut = x.clone()
            out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            if into_shortcut:
                shortcut += out
                return self.relu(shortcut)
            out += shortcut
            return self.relu(out)

    torch.manual_seed(0)
    net, x = Block().eval(), torch.randn(2, 3, 5, 5)
    fused = FusedNet(net, torch.float32, training=False)
    with patch.object(fused_conv, "conv_relu", side_effect=conv_relu) as called:
        found = fused({**dict(net.named_parameters()), **dict(net.named_buffers())}, x)
    torch.testing.assert_close(found, net(x), rtol=1e-4, atol=1e-5)
    added = [call.args[3] is not None for call in called.call_args_list]
    # what is written in place must be the sum itself
    assert added == ([False] if into_shortcut else [False, True])
