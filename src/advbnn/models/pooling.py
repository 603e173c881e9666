"""Max-pooling that is also fast on a CPU, where torch's own takes as long as the convolutions around it."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class MaxPool2x2(nn.MaxPool2d):
    """`nn.MaxPool2d(2)`; on a CPU, without gradients, by operations on whole rows of pixels, with the same values."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        return _by_rows(x) if _is_plain(x) else functional.max_pool2d(x, 2)


def _is_plain(x: Tensor) -> bool:
    """Whether the images are numbers on a CPU, of even sides, which nothing differentiates, traces or compiles."""
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined]
    if torch.is_grad_enabled() or tracing or torch.compiler.is_compiling():
        return False
    images = isinstance(x, Tensor) and x.ndim in (3, 4) and x.device.type == "cpu"
    return images and min(x.shape[-2:]) > 0 and x.shape[-2] % 2 == x.shape[-1] % 2 == 0


def _by_rows(x: Tensor) -> Tensor:
    rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])
