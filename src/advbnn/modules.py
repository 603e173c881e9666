"""Helpers for any `nn.Module`: its mode, device and dtype, and explanations of inputs that it cannot take."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from advbnn.errors import ArgumentError, InputError

_AS_TRAINED = "use inputs like those it was trained on"


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within the block; every submodule gets its own flag back afterwards.

    A model in evaluation mode is left as it is, including submodules in training mode, such as dropout at test time.
    """
    with modes_restored(model):
        if model.training:
            for module in model.modules():
                module.training = False
        yield


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Training mode within the block; every submodule gets its own flag back afterwards.

    A model in training mode is left as it is, including submodules kept in evaluation mode, such as frozen BatchNorm.
    """
    with modes_restored(model):
        if not model.training:
            model.train()
        yield


@contextmanager
def without_parameter_gradients(model: nn.Module) -> Iterator[None]:
    """No parameter of `model` requires a gradient within the block, so none is computed, compiled or not."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


@contextmanager
def modes_restored(model: nn.Module) -> Iterator[None]:
    """Every submodule gets its own mode back after the block."""
    # `model.train()` would also switch on the submodules that the caller keeps in evaluation mode
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def device_of(model: nn.Module, otherwise: torch.device) -> torch.device:
    """The device of the weights; `otherwise` for a network without any."""
    return next((p.device for p in model.parameters()), otherwise)


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The values of a tensor as bytes, for digests."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def usable_device(device: torch.device | str) -> torch.device:
    """A device that torch has here."""
    try:
        place = torch.device(device)
        torch.zeros((), device=place).item()
    except Exception:  # each kind of device fails in its own way, the meta device when a value is read
        count, accelerator = torch.cuda.device_count(), torch.accelerator.current_accelerator()
        others = [] if accelerator is None or count else [accelerator.type]
        here = " or ".join(["cpu", *(f"cuda:{index}" for index in range(count)), *others])
        problem = f"device={str(device)!r} is not usable: torch finds {here} here"
        raise ArgumentError(f"{problem}; use one of these") from None
    return place


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of the first floating-point weight; float32 for a network without any."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


@contextmanager
def explain_input_errors(
    model: nn.Module, argument: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None
) -> Iterator[None]:
    """Within the block, an error of torch becomes an `InputError` if the inputs do not fit the network.

    Nothing is checked before: a network may change its inputs before its first layer. `argument` is the caller's name
    for the inputs; `shape` has the batch dimension.
    """
    try:
        yield
    except (RuntimeError, IndexError, InputError) as error:
        reason = _mismatch(model, shape, dtype, device, str(error))
        if reason is None or isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(f"{argument} must {reason}") from (error.__cause__ or error)


@contextmanager
def input_unchanged(x: Tensor) -> Iterator[None]:
    """Refuse a network that changes its inputs in place: the next pass would get others."""
    before = None if x.is_inference() else x._version
    yield
    if before is not None and x._version != before:
        remedy = "compute new ones, such as (x - mean) / std instead of x.sub_(mean).div_(std)"
        raise ArgumentError(f"model changes its inputs in place, so that its next pass gets others; {remedy}")


def not_finite_error(x: Tensor) -> ArgumentError:
    bad = int((~x.isfinite()).reshape(len(x), -1).any(1).sum())
    return InputError(f"x must hold finite numbers, got NaN or infinity in {bad} of {len(x)} inputs; leave these out")


def _mismatch(
    model: nn.Module, shape: Sequence[int], dtype: torch.dtype, device: torch.device | None, message: str
) -> str | None:
    """What the inputs must be where they do not fit the weights; None if they seem to fit."""
    # the message decides, since token ids rightly have another type than the weights
    weights_device = device_of(model, torch.device("cpu") if device is None else device)
    if device is not None and device != weights_device and "device" in message:
        return f"be on the device of the weights, {weights_device}, got {device}; use .to({str(weights_device)!r})"
    weights_dtype = dtype_of(model)
    if dtype != weights_dtype and "type" in message:
        scaled = " / 255, for images of 0 to 255" if dtype == torch.uint8 else ""
        return f"be of the type of the weights, {weights_dtype}, got {dtype}; convert it: .to({weights_dtype}){scaled}"
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d | nn.Linear | nn.Embedding)), None)
    if isinstance(first, nn.Conv2d):
        fits, expected = len(shape) == 4 and shape[1] == first.in_channels, f"[n, {first.in_channels}, height, width]"
        remedy = _image_remedy(first.in_channels, shape)
    elif isinstance(first, nn.Linear):
        fits, expected = first.in_features in (*shape[-1:], math.prod(shape[1:])), f"[n, {first.in_features}] when flat"
        remedy = _AS_TRAINED
    else:
        return None
    return None if fits else f"be of shape {expected}, for the network's first layer, got {list(shape)}; {remedy}"


def _image_remedy(channels: int, shape: Sequence[int]) -> str:
    if len(shape) == 3:
        return "[None] makes a batch of a single image"
    if len(shape) == 4 and shape[3] == channels:
        return "its channels come last, and .permute(0, 3, 1, 2) moves them to the second place"
    if len(shape) == 4 and shape[1] == 1:
        return f".expand(-1, {channels}, -1, -1) repeats the channel of grey images"
    return _AS_TRAINED
