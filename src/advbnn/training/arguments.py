"""Arguments of `fit` that may be given in several forms: the data, and the weights to start from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from advbnn.data import Splits
from advbnn.data.streams import stream
from advbnn.errors import ArgumentError, ArgumentTypeError
from advbnn.models.initial_weights import InitialWeights
from advbnn.training.mode_plan import ModePlan
from advbnn.training.suitability import check_forward


def starts(init: InitialWeights | Sequence[InitialWeights] | None, plan: ModePlan) -> tuple[InitialWeights, ...]:
    """The checkpoints to start from: none, one for all modes, or one for each."""
    if init is None:
        return ()
    given = (init,) if isinstance(init, str | Path | Mapping) else tuple(init)
    if len(given) not in (1, plan.count):
        raise ArgumentError(f"init must be one checkpoint, or one for each of {plan.count} modes, got {len(given)}")
    return given


def as_splits(net: nn.Module, loader: Any, seed: int) -> Splits[Any]:
    """Batches of a loader as a training set; the network says how many classes there are, if the loader does not."""
    if not isinstance(loader, Iterable) or isinstance(loader, str | bytes | Tensor | Mapping):
        remedy = "advbnn.data.load and from_tensors make its sets; a DataLoader or a list of batches works too"
        raise ArgumentTypeError(f"data must be Splits(train, test), got {type(loader).__name__}; {remedy}")
    train = stream(loader, seed=seed)
    if train.classes and isinstance(net, nn.Module):
        outputs = check_forward(net, train).shape[1]
        if outputs != len(train.classes):
            train = replace(train, classes=tuple(map(str, range(outputs))))
    return Splits(train, train)
