"""Fast max-pooling against torch's; its kernels on a GPU, or in Triton's interpreter."""

import importlib.util
import os

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.fast import pooling
from advbnn.fast.pooling import FastMaxPool2d, fuse_pooling
from advbnn.models.pooling import MaxPool2x2

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
runs_kernels = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or (DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="needs a GPU, or Triton and TRITON_INTERPRET=1",
)


def images(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Activations with many ties, as after a ReLU and in half precision."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(4).round().relu()
    return x.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last)


def test_only_plain_pooling_of_two_by_two_windows_is_replaced() -> None:
    fast = [MaxPool2x2(), nn.MaxPool2d(2), nn.MaxPool2d((2, 2), (2, 2), (0, 0), (1, 1))]
    others = [nn.MaxPool2d(3), nn.MaxPool2d(2, 1), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, ceil_mode=True)]
    others.append(nn.MaxPool2d(2, return_indices=True))
    net = nn.Sequential(*fast, *others)
    fuse_pooling(net)
    assert [isinstance(part, FastMaxPool2d) for part in net] == [True] * len(fast) + [False] * len(others)


@pytest.mark.parametrize("shape", [(3, 16, 4, 6), (2, 5, 7, 9)])
def test_what_the_kernels_do_not_take_is_pooled_by_torch(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    layer = nn.MaxPool2d(2)
    expected = layer(x)
    fuse_pooling(layer)
    assert torch.equal(layer(x), expected)


@runs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 16, 2, 2), (3, 16, 4, 6), (5, 64, 32, 32), (70, 48, 8, 8)])
def test_the_kernels_pool_and_differentiate_as_torch_does(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from advbnn.fast import pooling_kernels

    x = images(*shape, dtype=dtype).requires_grad_()
    expected = functional.max_pool2d(x, 2)
    assert torch.equal(pooling_kernels.max_pool(x.detach()), expected)
    slope = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad(expected, x, slope)
    assert torch.equal(pooling_kernels.max_pool_backward(x.detach(), slope), gradient)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_gpu_uses_the_kernels() -> None:
    assert pooling._works(torch.device("cuda", torch.cuda.current_device()), torch.float32)
    assert pooling._applies(images(3, 16, 4, 6))
