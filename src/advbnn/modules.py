"""What every room needs of an `nn.Module`: its mode, device and dtype, and why it refused its inputs."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from advbnn.errors import InputError

_AS_TRAINED = "use inputs like those that it was trained on"


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within the block; every submodule gets its own flag back afterwards.

    A model that is in evaluation mode already stays as its owner has arranged it, with the parts that he keeps in
    training mode: the dropout of a network that drops units at test time is its randomness.

    `model.train()` would not do at the end: it also switches on the parts that the caller keeps in evaluation mode.
    """
    with _modes_restored(model):
        if model.training:
            for module in model.modules():
                module.training = False
        yield


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Training mode within the block; every submodule gets its own flag back afterwards.

    A model that is in training mode already stays as its owner has arranged it, with the parts that he keeps in
    evaluation mode: a normalisation that is frozen stays so.
    """
    with _modes_restored(model):
        if not model.training:
            model.train()
        yield


@contextmanager
def without_parameter_gradients(model: nn.Module) -> Iterator[None]:
    """No parameter of `model` asks for a gradient within the block, so none is computed, compiled or not."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


@contextmanager
def _modes_restored(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def device_of(model: nn.Module, otherwise: torch.device) -> torch.device:
    """The device of the weights; `otherwise` for a network without any."""
    return next((p.device for p in model.parameters()), otherwise)


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of the first floating-point weight; float32 for a network without any."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


@contextmanager
def explain_input_errors(model: nn.Module, argument: str, shape: Sequence[int], dtype: torch.dtype) -> Iterator[None]:
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
    except (RuntimeError, InputError) as error:
        weights = dtype_of(model)
        reason = _shape_mismatch(model, shape)
        if dtype != weights and "type" in str(error):  # tokens are rightly of another type
            scaled = " / 255, for images of 0 to 255" if dtype == torch.uint8 else ""
            reason = f"of the network's own type, {weights}, got {dtype}; convert it: .to({weights}){scaled}"
        if reason is None or isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(f"{argument} must be {reason}") from error


def _shape_mismatch(model: nn.Module, shape: Sequence[int]) -> str | None:
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
