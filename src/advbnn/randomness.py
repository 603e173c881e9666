"""Seeds: a block of code with its own random state, a separate seed for every purpose, and a fresh state on request.

Crafting an attack and scoring it never share random numbers. A network that keeps its random state between forward
passes offers `resample(seed)`; `with_fresh_state` then draws a new state for every pass. `is_random` says whether
passes differ at all.
"""

import functools
import hashlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from advbnn.errors import ArgumentError, ArgumentTypeError, whole

_PASSES = 32
"""Passes that are compared to see whether a network is random."""

LOOKS = 3
"""As many, where every prediction looks."""

_COPIES, _ROUNDING = 8, 1e-5
"""Copies of an image in one pass, and the largest difference between their outputs, relative to the largest output."""


_STATELESS = ("torch.nn.modules.", "torch.nn.functional", "advbnn.models.", "advbnn.bayes.", "advbnn.evaluation.")
"""Modules whose layers keep no state between passes in evaluation mode."""


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator


@contextmanager
def seeded(seed: int | None, device: torch.device | str = "cpu") -> Iterator[None]:
    """Within the block, torch's default generators of the CPU and of `device` follow `seed`.

    Afterwards both are restored, also when the block raises. With `seed=None` the block has no effect: random numbers
    come from the caller's generators.
    """
    if seed is None:
        yield
        return
    check_seed(seed)
    generators = {torch.default_generator, _default_generator(torch.device(device))}
    states = [(generator, generator.get_state()) for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


def pass_under(seed: int | None, network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The output of a pass whose random numbers follow `seed`."""
    with seeded(seed, x.device):
        return network(x)


@contextmanager
def seeded_globally(seed: int | None, device: torch.device | str = "cpu") -> Iterator[None]:
    """As `seeded`, for the global generators of NumPy and Python too: for code that is not ours."""
    if seed is None:
        yield
        return
    states = random.getstate(), np.random.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        with seeded(seed, device):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def check_seed(seed: int, argument: str = "seed") -> int:
    """Refuse what torch does not take for a seed."""
    return whole(argument, seed, -(2**63), 2**63 - 1)


def derive_seed(seed: int, purpose: str, index: int = 0) -> int:
    """A seed in [0, 2^63) for every (seed, purpose, index), by hashing the three; `index` may be that of a batch."""
    key = hashlib.blake2b(f"{purpose} {seed} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(key, "big") >> 1


def fresh_seed() -> int:
    """A seed from torch's default generator, so that what is seeded by it follows an outer seed."""
    return int(torch.randint(2**62, ()))


def crafting_seed(seed: int, batch: int) -> int:
    """The seed of an attack on a batch."""
    return derive_seed(seed, "craft", batch)


def scoring_seed(seed: int) -> int:
    """The seed of the classifier's weight samples: the same ensemble for every batch and attack."""
    return derive_seed(seed, "score")


def resample(model: nn.Module, seed: int, after_attack: bool = False) -> bool:
    """Draw a new state of a network that keeps its random state between passes; whether it offers that.

    Calls `resample(seed)` of every submodule that has such a method. Each gets a seed of its own, in [0, 2^32). Inner
    modules come first, so that a module that coordinates its parts has the last word. During the calls torch's default
    generators follow the seed, so the methods may use them, too.

    For the update of a training step `after_attack`, a method `resample_for_update(seed)` takes its place if there is
    one: the new draw may depend on that of the attack; see `KeptDraw`.
    """
    modules: list[Any] = [module for module in reversed(list(model.modules())) if has_resample(module)]
    if modules:
        with seeded(seed, _device_of(model)):
            for index, module in enumerate(modules):
                draw = getattr(module, "resample_for_update", module.resample) if after_attack else module.resample
                draw(derive_seed(seed, "resample", index) % 2**32)
    return bool(modules)


def offers_resample(model: nn.Module) -> bool:
    """Whether `resample` would draw a new state of a part of the network."""
    return any(map(has_resample, model.modules()))


class Resampled(nn.Module):
    """A network with a random state that it keeps between passes, as one that draws a fresh state at every pass.

    The seed of the state comes from torch's default generator of the CPU, so `seeded` and the seeds of attacks and
    evaluations make everything repeatable. A network whose modules have a method `resample(seed)` needs no adapter:
    attacks, predictions and evaluations wrap it themselves.

    Args:
        net: any network. After a pass it has the state of that pass.
        by: how a state is drawn, if not by methods `resample(seed)`: `by=lambda net, seed: net.random_filters()`.
            During the call the default generators of torch, NumPy and Python follow the seed.
    """

    def __init__(self, net: nn.Module, by: Callable[[Any, int], object] | None = None) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise ArgumentTypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
        if by is None and not offers_resample(net):
            remedy = "say how a state is drawn, such as by=lambda net, seed: net.redraw()"
            raise ArgumentError(f"net has no method resample(seed), and by is None; {remedy}")
        self.net, self.by = net, by
        self.training = net.training

    def resample(self, seed: int) -> None:
        """Draw the state of this seed."""
        if self.by is None:
            resample(self.net, seed)
            return
        with seeded_globally(seed % 2**32, _device_of(self.net)):
            self.by(self.net, seed % 2**32)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output under a fresh state."""
        self.resample(fresh_seed())
        return self.net(*args, **kwargs)


def draws_into_buffers(model: "Resampled") -> bool:
    """Whether all of the random state is drawn in place into buffers, by modules that say so as `KeptDraw` does."""
    parts = [part for part in model.net.modules() if has_resample(part)]
    return model.by is None and all(getattr(part, "draws_into_buffers", False) for part in parts)


def with_fresh_state(model: nn.Module) -> nn.Module:
    """`Resampled(model)` if a part of it offers `resample` and is not inside a `Resampled` yet; else `model` itself."""
    return Resampled(model) if _keeps_state(model) else model


def _keeps_state(module: nn.Module) -> bool:
    if isinstance(module, Resampled):
        return False
    return has_resample(module) or any(map(_keeps_state, module.children()))


def has_resample(module: nn.Module) -> bool:
    """Whether a module itself has a method `resample(seed)`."""
    method = getattr(module, "resample", None)
    return callable(method) and _takes_seed(getattr(method, "__func__", method))


@torch.no_grad()
def is_random(model: nn.Module, x: Tensor, passes: int = _PASSES, seed: int = 0) -> bool:
    """Whether a pass of the model uses random numbers, or passes differ; `x` holds a few inputs.

    A network that keeps its random state for some passes shows it within these, or when the batch changes; one that is
    `transparent` keeps none, and one pass decides. An audit looks at more passes, and the attribute `known_random` of
    the model that it attacks says what it found.
    """
    known: object = getattr(model, "known_random", None)
    if isinstance(known, bool):
        return known
    if transparent(model):
        return draws(model, x)
    with _uncompiled(), seeded(seed, x.device):
        before, first = random_state(x.device), None
        for _ in range(passes):
            outputs = model(x)
            if not torch.equal(before, random_state(x.device)):
                return True
            if not isinstance(outputs, Tensor):
                return False
            if first is not None and not torch.equal(first, outputs):
                return True
            if first is None:
                first = outputs
                model(x.flip(-1))  # another batch, after which it may draw a new state
    return False


@torch.no_grad()
def draws(network: nn.Module, x: Tensor) -> bool:
    """Whether a pass of the network uses random numbers of torch."""
    with seeded(0, x.device):
        before = random_state(x.device)
        network(x)
        return not torch.equal(before, random_state(x.device))


def draws_for_some(network: nn.Module, x: Tensor, size: int | None = None) -> bool:
    """Whether a pass uses random numbers of torch for some of the inputs, of which every second is off its grid.

    A network may be random for some images only, or for images that no camera makes. A pass takes `size` of the inputs;
    all when None.
    """
    known: object = getattr(network, "known_random", None)
    if isinstance(known, bool) or not x.is_floating_point():
        return known is True
    mixed = x.clone()
    mixed[::2] *= 0.999  # the first too, which may be the only one; `is_random` takes it as it is
    with _uncompiled():
        return any(draws(network, part) for part in mixed.split(size or len(x)))


def transparent(model: nn.Module) -> bool:
    """Whether every part is an unchanged layer of torch's or of this library's, none of which keeps a state.

    Their code is known: in evaluation mode no pass leaves anything to the next one, whatever the weights are. A class,
    a method, a hook or a function from elsewhere might.
    """
    return not offers_resample(model) and all(map(_unchanged, model.modules()))


def _unchanged(part: nn.Module) -> bool:
    if isinstance(part, torch.jit.ScriptModule):  # its code is not Python's
        return False
    kind = type(part)
    named = getattr(sys.modules.get(kind.__module__), kind.__name__, None)
    hooks = (part._forward_hooks, part._forward_pre_hooks)
    own = [value for value in vars(part).values() if callable(value) and not isinstance(value, Tensor)]
    return named is kind and not any(hooks) and all(map(_stateless, (kind, kind.forward, *own)))


def _stateless(code: object) -> bool:
    return str(getattr(code, "__module__", "")).startswith(_STATELESS)


@torch.no_grad()
def shares_draws(model: nn.Module, x: Tensor) -> bool:
    """Whether the images of a batch share their random numbers, as with random weights; `x` holds a few inputs.

    Then copies of an image have equal outputs, and a larger batch draws no more numbers. One image is noise, as a black
    one hides what multiplies it.
    """
    noise = torch.rand(x[:1].shape, generator=torch.Generator().manual_seed(0)).to(x)
    images = torch.cat([x[:1], torch.where(x[:1] == 0, noise, x[:1] * noise)])
    ends, outputs = [], images
    with _uncompiled():
        for copies in (1, _COPIES):
            with seeded(0, x.device):
                outputs = model(images.repeat_interleave(copies, 0))
                ends.append(random_state(x.device))
    of_each = outputs.unflatten(0, (2, _COPIES))
    equal = (of_each - of_each[:, :1]).abs().amax() <= _ROUNDING * outputs.abs().amax()
    return bool(equal) and torch.equal(*ends)


def _uncompiled() -> AbstractContextManager[Any]:
    """Within the block compiled models run as they are, as they would be compiled again for these inputs."""
    # without dynamo, which is slow to import, none is compiled
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def random_state(device: torch.device) -> Tensor:
    """The state of torch's default generators of the CPU and of a device."""
    cpu = torch.get_rng_state()
    return torch.cat([cpu, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else cpu


@functools.lru_cache
def _takes_seed(function: Callable[..., Any]) -> bool:
    """A function of the right name without a seed does something else, and is not called."""
    try:
        return "seed" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # without a signature
        return False


def _device_of(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in chain(model.parameters(), model.buffers())), torch.device("cpu"))
