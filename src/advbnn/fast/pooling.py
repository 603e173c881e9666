"""Max-pooling in the passes of attacks and predictions: Triton kernels where they apply, torch elsewhere."""

import functools
import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from advbnn.errors import first_line
from advbnn.models.pooling import MaxPool2x2

log = logging.getLogger("advbnn")


def fuse_pooling(net: nn.Module) -> None:
    """Turn the plain max-pooling of 2x2 windows in a network into `FastMaxPool2d`."""
    for part in net.modules():
        if not isinstance(part, nn.MaxPool2d) or type(part) not in (nn.MaxPool2d, MaxPool2x2):
            continue
        if not part.return_indices and not part.ceil_mode:
            settings = (part.kernel_size, part.stride, part.padding, part.dilation)
            if settings in ((2, 2, 0, 1), ((2, 2), (2, 2), (0, 0), (1, 1))):
                part.__class__ = FastMaxPool2d


class FastMaxPool2d(MaxPool2x2):
    """2x2 max-pooling; on a GPU, for images in channels_last, one pass over memory in either direction."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not _applies(x):
            outputs: Tensor = super().forward(x)
            return outputs
        pooled: Tensor = _MaxPool.apply(x)
        return pooled


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from advbnn.fast import pooling_kernels

        ctx.save_for_backward(x)
        return pooling_kernels.max_pool(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        from advbnn.fast import pooling_kernels

        (x,) = ctx.saved_tensors
        return pooling_kernels.max_pool_backward(x, grad.contiguous(memory_format=torch.channels_last))


def _applies(x: Tensor) -> bool:
    if not x.is_cuda or x.dim() != 4 or x.dtype not in (torch.float32, torch.bfloat16) or not 0 < x.numel() < 2**31:
        return False
    if x.device.index != torch.cuda.current_device():  # where Triton would start the kernels
        return False
    even = x.shape[1] % 16 == x.shape[2] % 2 == x.shape[3] % 2 == 0
    return even and x.is_contiguous(memory_format=torch.channels_last) and _works(x.device, x.dtype)


@functools.cache
def _works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels run here and agree with torch, ties and infinities included; the log says if not."""
    try:
        with torch.inference_mode(False), torch.enable_grad():
            x = (torch.arange(2 * 16 * 4 * 6, device=device) * 7919 % 13 - 6).to(dtype).relu().view(2, 16, 4, 6)
            x[0, 0, 0, 0] = torch.inf
            x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
            slope = torch.arange(2 * 16 * 2 * 3, device=device).to(dtype).view(2, 16, 2, 3)
            found, expected = _MaxPool.apply(x), functional.max_pool2d(x, 2)
            slopes = [torch.autograd.grad(pooled, x, slope)[0] for pooled in (found, expected)]
            equal = torch.equal(found, expected) and torch.equal(*slopes)
            reason = None if equal else "their results differ"
    except Exception as error:  # without Triton, or where it cannot compile
        reason = first_line(error)
    if reason is not None:
        log.info("pooling with torch's kernels, not ours: %s", reason)
    return reason is None
