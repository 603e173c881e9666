"""Straight-through gradients: a hard forward pass that is differentiated as if it were a soft one.

The gradient of quantisation, of a hard mask, or of anything else that is piecewise constant is zero, though the network
is not robust. A module says what its backward pass should be by a method with the arguments of `forward`:

    class Quantised(nn.Module):
        def forward(self, x):
            return (x * 7).round() / 7

        def straight_through(self, x):  # similar to forward, with a useful gradient
            return x

Every attack of this package then uses the value of `forward` and the gradient of `straight_through`, which runs with
the random numbers of the forward pass. `BPDA` does the same for modules that have no such method.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_STATES = "_random_states_of_this_pass"

Soft = Callable[..., Tensor]


def with_gradient_of(soft: Tensor, hard: Tensor) -> Tensor:
    """The value of `hard` with the gradient of `soft`."""
    return hard.detach() + (soft - soft.detach())


def straight_through_parts(model: nn.Module) -> list[nn.Module]:
    """The parts that offer a method `straight_through`."""
    return [part for part in model.modules() if callable(getattr(part, "straight_through", None))]


@contextmanager
def straight_through(model: nn.Module) -> Iterator[None]:
    """Within the block, gradients of the parts that offer `straight_through` are those of that method."""
    parts = straight_through_parts(model)
    hooks = [part.register_forward_pre_hook(_remember, with_kwargs=True) for part in parts]
    hooks += [part.register_forward_hook(_own, with_kwargs=True) for part in parts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def replaced_backward(part: nn.Module, soft: Soft) -> Iterator[None]:
    """Within the block, gradients of `part` are those of `soft`, a function of what `part` is given by position.

    Of a part that is called by keywords alone, it is given the tensors among them.
    """

    def soften(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], hard: Any) -> Any:
        given = inputs or tuple(value for value in named.values() if isinstance(value, Tensor))
        return _soften(module, given, {}, hard, soft)

    before = part.register_forward_pre_hook(_remember, with_kwargs=True)
    after = part.register_forward_hook(soften, with_kwargs=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()


# functions without a state, so that a copy of a module made within the block behaves like the module


def _remember(part: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
    if torch.is_grad_enabled():
        devices = {value.device for value in (*inputs, *named.values()) if isinstance(value, Tensor) and value.is_cuda}
        states = [(device, torch.cuda.get_rng_state(device)) for device in devices]
        setattr(part, _STATES, (torch.get_rng_state(), states))


def _own(part: Any, inputs: tuple[Any, ...], named: dict[str, Any], hard: Any) -> Any:
    if named:  # such as switches of the forward pass, which this method need not have
        known = inspect.signature(part.straight_through).parameters
        everything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
        named = {name: value for name, value in named.items() if everything or name in known}
    return _soften(part, inputs, named, hard, part.straight_through)


def _soften(part: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], hard: Any, soft: Soft) -> Any:
    states = part.__dict__.pop(_STATES, None)
    differentiated = any(isinstance(value, Tensor) and value.requires_grad for value in (*inputs, *named.values()))
    if states is None or not differentiated or not isinstance(hard, Tensor):
        return hard
    on_cpu, on_cuda = states
    with torch.random.fork_rng([device for device, _ in on_cuda]):
        torch.set_rng_state(on_cpu)
        for device, state in on_cuda:
            torch.cuda.set_rng_state(state, device)
        return with_gradient_of(soft(*inputs, **named), hard)
