"""One forward pass in evaluation mode in two parts: sample the weights, then run the fused network with them.

The random numbers come from the model's own `sample`, so for the same seed they are the same as without acceleration.
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from advbnn.bayes.protocol import RandomNetwork, inner_network, random_parts
from advbnn.fast.fused_net import FusedNet
from advbnn.fast.pooling import fuse_pooling
from advbnn.randomness import random_state, seeded

log = logging.getLogger("advbnn")


class FusedForward:
    """A forward pass of `model`, called like it.

    A random network, and a network without random weights, runs as a `FusedNet`; any other model as it is.

    Attributes:
        channels_last: bring images and weights into the memory format that is fastest for convolutions on a GPU.
    """

    def __init__(self, model: nn.Module, bf16: bool) -> None:
        self.channels_last = False
        self._model, self._bf16, self._net = model, bf16, inner_network(model)
        # one network in float32, all of whose weights are sampled together, if at all
        single = not random_parts(self._net) and all(p.dtype == torch.float32 for p in model.parameters())
        self._fused_net = _fused_net(self._net, bf16) if single else None

    def __call__(self, x: Tensor) -> Tensor:
        return self.run(self.sample(), self.arrange(x))

    @torch.no_grad()
    def sample(self) -> dict[str, Tensor]:
        """All tensors of the fused network by name; none of them requires a gradient."""
        if self._fused_net is None:
            return {}
        tensors = {n: p.detach() for n, p in (*self._net.named_parameters(), *self._net.named_buffers())}
        if isinstance(self._model, RandomNetwork):
            tensors |= self._model.sample()
        return {name: self.arrange(tensor) for name, tensor in tensors.items()}

    def run(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        return eager_forward(self._model, x, self._bf16) if self._fused_net is None else self._fused_net(tensors, x)

    @torch.no_grad()
    def draws_ignore_the_batch(self, x: Tensor) -> bool:
        """Whether a pass of twice as many images draws the same random numbers, such as noise on weights."""
        found: list[list[object]] = []
        for images in (x, torch.cat([x, x])):
            with seeded(0, x.device), _Draws(x.device) as draws:
                self(images)
            found.append(draws.found)
        return found[0] == found[1]

    def arrange(self, x: Tensor) -> Tensor:
        """The tensor in the memory format of this pass."""
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x


class _Draws(TorchDispatchMode):
    """Notes the operations that use random numbers: their numbers, and the shapes of what they draw."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.found: list[object] = []
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = random_state(self._device)
        outputs = func(*args, **(kwargs or {}))
        if not torch.equal(before, random_state(self._device)):
            shapes = [each.shape for each in pytree.tree_leaves(outputs) if isinstance(each, Tensor)]
            numbers = [each for each in pytree.tree_leaves(args) if isinstance(each, int | float)]
            self.found.append((func, shapes, numbers))
        return outputs


def eager_forward(model: nn.Module, x: Tensor, bf16: bool) -> Tensor:
    """The model as it is, under torch's autocast for bfloat16."""
    if not bf16:
        outputs: Tensor = model(x)
        return outputs
    with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
        outputs = model(x)
    return outputs.to(x.dtype)


def _fused_net(net: nn.Module, bf16: bool) -> FusedNet | None:
    try:
        fused = FusedNet(net, torch.bfloat16 if bf16 else torch.float32, training=False)
        fuse_pooling(fused.structure)
        return fused
    except Exception as error:  # copying an unknown network may raise anything
        log.info("running %s without fusing: %s", type(net).__name__, error)
        return None
