"""What every network with random weights offers: a posterior family is a subclass of `RandomNetwork` with `sample`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from advbnn.bayes.functional import parameter_paths
from advbnn.bayes.priors import Prior
from advbnn.errors import ArgumentError, ArgumentTypeError
from advbnn.modules import device_of, evaluating, explain_input_errors
from advbnn.randomness import LOOKS, is_random, seeded

Weights = dict[str, Tensor]  # one weight sample, by the names that the tensors have in `net`
Choice = Callable[[str, nn.Parameter], bool]  # chooses parameters by name and value

_CHECKPOINTING = ("gradient_checkpointing", "grad_checkpointing", "use_checkpoint", "with_cp", "memory_efficient")
"""Attributes by which transformers, timm, torchvision and others switch on activation checkpointing."""


@dataclass(frozen=True)
class Member:
    """One network of a posterior with finite support, and its probability."""

    weight: float
    net: nn.Module


EXACT_UP_TO = 32
"""Up to so many members, predictions are exact means over all of them; above it they are sampled."""


class HasMembers(nn.Module):
    """A network that may be a mixture of finitely many: a random network, or a wrapper that passes its members on."""

    @property
    def support(self) -> int:
        """The number of `members`; 0 for a posterior without finite support."""
        return 0

    def members(self) -> tuple[Member, ...]:
        """The networks of a posterior with finite support, as plain networks; empty for any other posterior.

        A sample of the posterior is one of them, chosen with the probability `weight`.
        """
        return ()


class RandomNetwork(HasMembers, ABC):
    """A network that samples its weights anew at every call.

    Activation checkpointing inside `net` is not supported: its second run during the backward pass would not see the
    sampled weights, and gradients would be wrong. Where a module says by its attributes that it uses it, it is
    refused. Checkpoint the whole random network instead: `checkpoint(bnn, x, use_reentrant=False)`.

    Attributes:
        net: the network whose weights are replaced by samples. It is wrapped, not copied.
        prior: the prior of the weights in `posterior()`; None for a family that is not trained by a KL.
        frozen_sample: the weight sample of the enclosing `frozen` block; None outside of one.
        scratch: memory that `sample` writes to and may replace; a CUDA graph that captures `sample` must keep it alive.
    """

    scratch: object = None

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._check(net)
        self.net = net
        self.prior: Prior | None = None
        self.training = net.training
        self._paths = parameter_paths(net)
        self.frozen_sample: Weights | None = None

    @staticmethod
    def _check(net: nn.Module) -> None:
        check_plain(net)

    @abstractmethod
    def sample(self) -> Weights:
        """One weight sample, with randomness from torch's default generators."""

    def run(self, weights: Weights, *args: Any, **kwargs: Any) -> Any:
        """The network's output with the given weights, such as those of `sample`; works under `torch.func.vmap`."""
        placed = {path: weight for name, weight in weights.items() for path in self._paths[name]}
        x = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        if x is None or torch.compiler.is_compiling():  # a compiler cannot trace the handling of errors
            return functional_call(self.net, placed, args, kwargs, tie_weights=False)
        with explain_input_errors(self.net, "input", x.shape, x.dtype, x.device):
            return functional_call(self.net, placed, args, kwargs, tie_weights=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output with a fresh weight sample, or with the sample of the enclosing `frozen` block."""
        return self.run(self.sample() if self.frozen_sample is None else self.frozen_sample, *args, **kwargs)

    @contextmanager
    def frozen(self, seed: int | None = None, *, weights: Weights | None = None) -> Iterator[Self]:
        """Within the block every forward pass uses one weight sample, without gradient: a deterministic network.

        It is the sample of the first forward pass after seeding torch with `seed`, the given one, or a fresh one.
        """
        if seed is not None and weights is not None:
            raise ArgumentError("frozen takes a seed or weights, not both")
        if weights is None:
            with torch.no_grad(), seeded(seed, device_of(self, torch.device("cpu"))):
                weights = self.sample()
        outer, self.frozen_sample = self.frozen_sample, {name: weight.detach() for name, weight in weights.items()}
        try:
            yield self
        finally:
            self.frozen_sample = outer

    @property
    def posterior_mean(self) -> nn.Module | None:
        """The deterministic network with the posterior-mean weights; None for a family that does not hold one."""
        return None

    def posterior(self) -> Iterator[tuple[str, nn.Parameter, nn.Parameter]]:
        """(name, mu, s) of every parameter with a trainable posterior N(mu, exp(s)^2); nothing for other families."""
        return iter(())

    def __getstate__(self) -> dict[str, Any]:
        # a copy is not inside the `frozen` block
        return {**self.__dict__, "frozen_sample": None}


@dataclass(frozen=True)
class GaussianParameter:
    """A random parameter with posterior N(mu, exp(log_std)^2)."""

    name: str
    local_name: str  # in its own random network
    mu: nn.Parameter
    log_std: nn.Parameter
    owner: nn.Module  # holds the mean
    prior: Prior

    def kl(self) -> Tensor:
        """KL(q || p), summed over the parameter (eq. 6)."""
        return self.prior.kl(self.local_name, self.mu, self.log_std)


def gaussian_parameters(model: nn.Module) -> list[GaussianParameter]:
    """The parameters with a trainable Gaussian posterior in every random network that `model` contains."""
    found = []
    for path, part in random_parts(model):
        if part.prior is None:
            continue
        for name, mu, s in part.posterior():
            owner = part.net.get_submodule(name.rpartition(".")[0])
            found.append(GaussianParameter(f"{path}.{name}".lstrip("."), name, mu, s, owner, part.prior))
    return found


def random_parts(model: nn.Module) -> list[tuple[str, RandomNetwork]]:
    """Every random network in `model`, itself included, with its path."""
    return [(path, part) for path, part in model.named_modules() if isinstance(part, RandomNetwork)]


def members(model: nn.Module, at_most: int | None = None) -> tuple[Member, ...]:
    """The networks of a random network with finite support; empty for any other model, or if there are too many.

    Within a `frozen` block a random network has a single weight sample, and no members.
    """
    if not isinstance(model, HasMembers) or (at_most is not None and model.support > at_most):
        return ()
    return () if getattr(model, "frozen_sample", None) is not None else model.members()


def finite_support(model: nn.Module, x: Tensor, at_most: int | None = None) -> tuple[Member, ...]:
    """The `members` of a network; none if one of them is random itself, as passes on a few inputs `x` show.

    A single pass of each would then be no exact mean.
    """
    found = members(model, at_most)
    return () if some_are_random(found, x) else found


def some_are_random(found: Iterable[Member], x: Tensor) -> bool:
    """Whether a member is random itself, as passes on a few inputs `x` show."""
    for one in found:
        with evaluating(one.net):
            if is_random(one.net, x, LOOKS):
                return True
    return False


def inner_network(model: nn.Module) -> nn.Module:
    """The plain network inside a random one; any other model as it is."""
    return model.net if isinstance(model, RandomNetwork) else model


def posterior_mean(model: nn.Module) -> nn.Module | None:
    """The posterior-mean network of a random network that holds one; None for any other model."""
    return model.posterior_mean if isinstance(model, RandomNetwork) else None


def check_plain(net: nn.Module) -> None:
    """Refuse what cannot be given random weights: no module, random already, or using activation checkpointing."""
    if not isinstance(net, nn.Module):
        raise ArgumentTypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    for path, part in net.named_modules():
        place = f"its part {path!r}" if path else "it"
        if isinstance(part, RandomNetwork):
            raise ArgumentError(f"net is converted already: {place} is a {type(part).__name__}")
        for attribute in _CHECKPOINTING:
            if getattr(part, attribute, False) is True:
                remedy = "switch it off, and checkpoint the whole network: checkpoint(bnn, x, use_reentrant=False)"
                raise ArgumentError(f"net uses activation checkpointing: {place} has {attribute}=True; {remedy}")
