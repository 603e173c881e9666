"""Borrowing a model for a while: modes and gradient flags are handed back as they were found."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


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
