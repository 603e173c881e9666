"""Inputs that a network cannot take: what was expected, what came, and the remedy, once torch has refused them."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from advbnn.identity import dtype_of

_AS_TRAINED = "use inputs like those that it was trained on"


class MisfitError(ValueError):
    """Inputs are not of the shape or the type that the network takes."""


@contextmanager
def explaining_misfit(model: nn.Module, argument: str, shape: Sequence[int], dtype: torch.dtype) -> Iterator[None]:
    """Within the block an error of torch is explained, if the inputs do not suit the network's first layer.

    Nothing is looked at before: what a network does with its inputs is its own affair, as long as it can.

    Args:
        model: the network.
        argument: what the inputs are called by the caller.
        shape: theirs, that of the batch included.
        dtype: their type.
    """
    try:
        yield
    except (RuntimeError, MisfitError) as error:
        weights = dtype_of(model)
        reason = _misfit_of_shape(model, shape)
        if dtype != weights and "type" in str(error):  # tokens are rightly of another type
            scaled = " / 255, for images of 0 to 255" if dtype == torch.uint8 else ""
            reason = f"of the network's own type, {weights}, got {dtype}; convert it: .to({weights}){scaled}"
        if reason is None or isinstance(error, torch.OutOfMemoryError):
            raise
        raise MisfitError(f"{argument} must be {reason}") from error


def _misfit_of_shape(model: nn.Module, shape: Sequence[int]) -> str | None:
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Conv2d):
        fits, expected = len(shape) == 4 and shape[1] == first.in_channels, f"[n, {first.in_channels}, height, width]"
        remedy = _remedy(first.in_channels, shape)
    elif isinstance(first, nn.Linear):
        fits, expected = first.in_features in (*shape[-1:], math.prod(shape[1:])), f"[n, {first.in_features}] when flat"
        remedy = _AS_TRAINED
    if first is None or fits:
        return None
    return f"of shape {expected}, for the network's first layer, got {list(shape)}; {remedy}"


def _remedy(channels: int, shape: Sequence[int]) -> str:
    if len(shape) == 3:
        return "[None] makes a batch of a single image"
    if len(shape) == 4 and shape[3] == channels:
        return "channels come last there, and .permute(0, 3, 1, 2) puts them second"
    if len(shape) == 4 and shape[1] == 1:
        return f".expand(-1, {channels}, -1, -1) makes grey images look like coloured ones"
    return _AS_TRAINED
