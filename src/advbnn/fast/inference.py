"""One pass of a network in evaluation mode, taken apart: the weights are drawn, and given to the network's structure.

The random numbers come from the calls that the network makes itself, so that for the same seed they are the same.
"""

import logging

import torch
from torch import Tensor, nn

from advbnn.bayes.mean_field import Bayesian
from advbnn.bayes.sample_bank import SampleBank
from advbnn.fast.fused_net import FusedNet

log = logging.getLogger("advbnn")


class StructuredPass:
    """A pass of `model`, called like it.

    A `Bayesian`, and a network without random weights, runs as its `FusedNet`; any other as it is.

    Attributes:
        channels_last: bring images and weights into the layout in which convolutions on a GPU are fastest.

    Args:
        model: the network; it is not changed.
        bf16: matrix products in bfloat16.
    """

    def __init__(self, model: nn.Module, bf16: bool) -> None:
        self.channels_last = False
        self._model, self._bf16 = model, bf16
        self._net = model.net if isinstance(model, Bayesian) else model
        self._fused_net = _fused_net(self._net, bf16) if _is_one_network(model) else None

    def __call__(self, x: Tensor) -> Tensor:
        """The network's output, with weights of its own."""
        return self.run(self.draw(), self.arranged(x))

    @torch.no_grad()
    def draw(self) -> dict[str, Tensor]:
        """All tensors of the structure by name; none of them asks for a gradient."""
        if self._fused_net is None:
            return {}
        tensors = {n: p.detach() for n, p in (*self._net.named_parameters(), *self._net.named_buffers())}
        if isinstance(self._model, Bayesian):
            tensors |= self._model.sample()
        return {name: self.arranged(tensor) for name, tensor in tensors.items()}

    def run(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        """The network's output with the given tensors."""
        return run_plainly(self._model, x, self._bf16) if self._fused_net is None else self._fused_net(tensors, x)

    def arranged(self, x: Tensor) -> Tensor:
        """The tensor in the layout of this pass."""
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x


def run_plainly(model: nn.Module, x: Tensor, bf16: bool) -> Tensor:
    """The model as it is, by torch's autocast if bfloat16 is asked for."""
    if not bf16:
        outputs: Tensor = model(x)
        return outputs
    with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
        outputs = model(x)
    return outputs.to(x.dtype)


def _is_one_network(model: nn.Module) -> bool:
    """Whether the weights are those of one network in float32, drawn, if at all, all together."""
    inner = model.net if isinstance(model, Bayesian) else model
    nested = any(isinstance(part, Bayesian | SampleBank) for part in inner.modules())
    return not nested and all(p.dtype == torch.float32 for p in model.parameters())


def _fused_net(net: nn.Module, bf16: bool) -> FusedNet | None:
    try:
        return FusedNet(net, torch.bfloat16 if bf16 else torch.float32, training=False)
    except Exception as error:  # whatever a network of unknown origin raises when it is copied
        log.info("running %s without a twin: %s", type(net).__name__, error)
        return None
