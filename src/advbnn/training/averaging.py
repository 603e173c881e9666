"""Averages of the weights during training, which often have better clean and robust accuracy than the last weights.

For a mean-field posterior, the means mu and the log standard deviations s are averaged, so that standard deviations are
averaged geometrically.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from advbnn.errors import ArgumentError
from advbnn.modules import evaluating


class WeightAverage:
    """The running average of the weights of a model.

        average <- average + r_t * (w_t - average),    r_t = max(1 / t, 1 - decay)

    after the t-th update. With a decay this is the exponential moving average (EMA), which starts as a plain mean until
    it spans 1 / (1 - decay) updates, so that it does not depend on the initial weights. With `decay=None`, r_t = 1 / t:
    the equal average of stochastic weight averaging (SWA).

    Buffers are copied from the latest update. Running statistics among them do not fit the average, whose weights are
    smaller the more the weights move: `refresh_batchnorm` estimates them anew. Parameters in half precision are
    averaged in float32, which does not round small changes away.

    Before the first of its `updates`, the average is the initial model.
    """

    def __init__(self, model: nn.Module, decay: float | None = 0.995) -> None:
        self.decay = decay
        self.updates = 0
        precise = [p.detach().to(torch.promote_types(p.dtype, torch.float32)) for p in model.parameters()]
        self._average = [tensor.clone() for tensor in precise]
        self._latest = [b.detach().clone() for b in model.buffers()]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        share = max(1 / self.updates, 0.0 if self.decay is None else 1 - self.decay)
        parameters = [p.to(a) for p, a in zip(model.parameters(), self._average, strict=True)]
        torch._foreach_lerp_(self._average, parameters, share)
        for mine, theirs in by_type(self._latest, model.buffers()):
            torch._foreach_copy_(mine, theirs)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Overwrite the parameters and buffers of `model` with the average."""
        torch._foreach_copy_([*model.parameters(), *model.buffers()], [*self._average, *self._latest])

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Within the block, `model` has the averaged weights; afterwards its own parameters and buffers, exactly."""
        with restored([*model.parameters(), *model.buffers()]):
            self.copy_to(model)
            yield

    @torch.no_grad()
    def outputs(self, model: nn.Module, network: nn.Module, x: Tensor) -> Tensor:
        """The outputs of `network`, which is `model` or a part of it, with the averaged weights.

        In the network's own mode: in training mode with the statistics of the batch, which always fit the weights.
        """
        with self.applied(model):
            return cast(Tensor, network(x))

    def state_dict(self) -> dict[str, Any]:
        """The number of updates and the tensors, not copied."""
        return {"updates": self.updates, "average": list(self._average), "latest": list(self._latest)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved = (*state["average"], *state["latest"])
        for tensor, value in zip((*self._average, *self._latest), saved, strict=True):
            tensor.copy_(value)
        self.updates = int(state["updates"])


def by_type(mine: Iterable[Tensor], theirs: Iterable[Tensor]) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Pairs of lists of tensors of one type, which one kernel can copy."""
    pairs = list(zip(mine, theirs, strict=True))
    types = {a.dtype: None for a, _ in pairs}
    return [([a for a, _ in pairs if a.dtype == t], [b for a, b in pairs if a.dtype == t]) for t in types]


@contextmanager
def restored(tensors: Iterable[Tensor]) -> Iterator[None]:
    """After the block, the tensors have the values from before it, bit for bit."""
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in kept:
                tensor.copy_(value)


@torch.no_grad()
def refresh_batchnorm(model: nn.Module, batches: Iterable[Any]) -> None:
    """Estimate the running statistics of every BatchNorm layer anew, as the mean over `batches`.

    All other layers run in evaluation mode, as they will when the statistics are used; a random network samples fresh
    weights for every batch. The model gets the new statistics after the last batch. Until then it has its old ones and
    its own modes while the iterator makes a batch, for example by attacking it. If anything fails, nothing has changed.

    The batches are inputs on the device of the model, or tuples such as (inputs, labels). In a model in training mode,
    layers in evaluation mode are frozen and keep their statistics.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    norms = [norm for norm in norms if norm.training or not model.training]
    if not norms:
        return
    new: list[Tensor] | None = None
    for batch in batches:
        with evaluating(model), _collecting(norms, new) as buffers:
            model(batch[0] if isinstance(batch, tuple | list) else batch)
            new = [buffer.clone() for buffer in buffers]
    if new is None:
        raise ArgumentError("batches is empty, so there are no statistics; an iterator may be exhausted")
    torch._foreach_copy_([buffer for norm in norms for buffer in norm.buffers()], new)


@contextmanager
def _collecting(norms: list[_BatchNorm], statistics: list[Tensor] | None) -> Iterator[list[Tensor]]:
    """Within the block, the layers add batches to the given statistics, or to fresh ones, as plain means."""
    buffers = [buffer for norm in norms for buffer in norm.buffers()]
    settings = [(norm.momentum, norm.training) for norm in norms]
    try:
        with restored(buffers):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum, norm.training = None, True
            if statistics is not None:
                torch._foreach_copy_(buffers, statistics)
            yield buffers
    finally:
        for norm, (momentum, training) in zip(norms, settings, strict=True):
            norm.momentum, norm.training = momentum, training
