"""A posterior with several modes: a mixture of networks, each a random network or a plain one.

A deep ensemble is a mixture of plain networks, MultiSWAG one of `SWAG`s. Five checkpoints become modes in three lines:

    nets = [build() for _ in files]
    for net, file in zip(nets, files): net.load_state_dict(torch.load(file, weights_only=True))
    modes = advbnn.Modes(nets)
"""

import copy
import itertools
import math
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from advbnn.bayes.functional import parameter_paths, saved_tensors
from advbnn.bayes.protocol import Member, RandomNetwork, Weights, check_plain, random_parts
from advbnn.display import notebook
from advbnn.errors import ArgumentError, ArgumentTypeError, shown, whole
from advbnn.modules import dtype_of


class Modes(RandomNetwork):
    """The mixture p(w) = sum_k weight_k p_k(w): every call chooses a mode, which then samples its own weights.

    A component is any network that takes the same inputs and returns the same kind of outputs; architectures may
    differ. A plain network is a point mass. Components are held, not copied. The choice uses torch's default generator
    of the CPU. A weight sample names the tensors of its mode with the mode's index in front, as in `"2.conv.weight"`.

    If every component is a plain network or has finite support, so has the mixture: `predict`, attacks and
    evaluation then use the exact mean over all `members`.

    `state_dict` and safetensors hold all components and their weights. Loading makes room for as many modes as were
    saved, by copies of the first one: all must then have its architecture.
    """

    net: nn.ModuleList
    weights: tuple[float, ...]

    def __init__(self, networks: Iterable[nn.Module], weights: Sequence[float] | None = None) -> None:
        """`weights` are the probabilities of the modes, up to a common factor; equal when None."""
        given: Any = networks
        # a Sequential is iterable, too: its layers would be the modes
        if isinstance(given, nn.Sequential) or not isinstance(given, Iterable):
            came = type(given).__name__
            raise ArgumentTypeError(f"networks must be a list of networks, got {came}; of a single one, Modes([net])")
        components: list[Any] = list(given)
        if not components:
            raise ArgumentError("networks must hold at least one network, got none")
        for number, component in enumerate(components):
            if not isinstance(component, nn.Module):
                came = type(component).__name__
                raise ArgumentTypeError(f"networks must hold modules, got a {came} at {number}; load checkpoints first")
        dtypes = {dtype_of(component) for component in components if next(component.parameters(), None) is not None}
        if len(dtypes) > 1:
            found = " and ".join(sorted(map(str, dtypes)))
            raise ArgumentError(
                f"networks must have weights of one type, got {found}; convert some, such as net.float()"
            )
        training = {component.training for component in components}
        super().__init__(nn.ModuleList(components))
        self.training = self.net.training = training == {True}
        self.weights = _normalised([1.0] * len(components) if weights is None else weights, len(components))

    def __len__(self) -> int:
        return len(self.net)

    def choose(self) -> int:
        """The index of a mode, chosen at random with its weight."""
        if len(self) == 1:
            return 0  # the same random numbers as the component alone
        bounds = list(itertools.accumulate(self.weights[:-1]))
        return bisect(bounds, float(torch.rand((), dtype=torch.float64)))

    def sample(self, mode: int | None = None) -> Weights:
        """One weight sample of the given mode; of one chosen at random when None."""
        index = self.choose() if mode is None else whole("mode", mode, 0, len(self) - 1)
        component = self.net[index]
        inner = component.sample() if isinstance(component, RandomNetwork) else saved_tensors(component)
        # a network without tensors has a mode all the same
        return {f"{index}.{name}": weight for name, weight in inner.items()} or {f"{index}.": torch.empty(0)}

    def run(self, weights: Weights, *args: Any, **kwargs: Any) -> Any:
        index = next(iter(weights)).partition(".")[0]
        component = self.net[int(index)]
        inner = {name.removeprefix(f"{index}."): weight for name, weight in weights.items() if weight.numel()}
        if isinstance(component, RandomNetwork):
            return component.run(inner, *args, **kwargs)
        paths = parameter_paths(component)
        placed = {path: weight for name, weight in inner.items() for path in paths[name]}
        return functional_call(component, placed, args, kwargs, tie_weights=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.frozen_sample is not None:
            return self.run(self.frozen_sample, *args, **kwargs)
        return self.net[self.choose()](*args, **kwargs)

    @contextmanager
    def frozen(self, seed: int | None = None, *, weights: Weights | None = None) -> Iterator[Self]:
        if _has_random_layers(self):
            remedy = "make each of them random as a whole, with bayesianize(net)"
            raise ArgumentError(f"frozen cannot fix random layers inside of components of a mixture; {remedy}")
        with super().frozen(seed, weights=weights):
            yield self

    @property
    def support(self) -> int:
        sizes = [_support(component) for component in self.net]
        return sum(sizes) if all(sizes) else 0

    def members(self) -> tuple[Member, ...]:
        """The members of all components, if each is plain or has some; weights are multiplied."""
        if not self.support:
            return ()
        pairs = zip(self.weights, self.net, strict=True)
        return tuple(
            Member(weight * member.weight, member.net) for weight, part in pairs for member in component_members(part)
        )

    @property
    def posterior_mean(self) -> nn.Module | None:
        """That of the component of a mixture of one; the mean weights of several modes are no useful network."""
        only = self.net[0]
        return only.posterior_mean if len(self) == 1 and isinstance(only, RandomNetwork) else None

    def extra_repr(self) -> str:
        return f"weights=({', '.join(f'{weight:.6g}' for weight in self.weights)})"

    def _repr_html_(self) -> str:
        """One row per mode, for notebooks."""
        rows = (
            (index, type(part).__name__, f"{weight:.3g}", f"{sum(p.numel() for p in part.parameters()):,}")
            for index, (weight, part) in enumerate(zip(self.weights, self.net, strict=True))
        )
        caption = f"Mixture of {len(self)} modes"
        return notebook.table(caption, ("mode", "network", "weight", "parameters"), rows, len(self))

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.weights, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.weights = _normalised(state.tolist(), len(self))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        saved = state_dict.get(f"{prefix}_extra_state")
        if saved is not None and len(saved) != len(self):
            first, count = self.net[0], len(saved)
            components = [*self.net][:count] + [copy.deepcopy(first) for _ in range(count - len(self))]
            self.net = nn.ModuleList(components).train(self.training)
            self._paths = parameter_paths(self.net)
        super()._load_from_state_dict(state_dict, prefix, *args)

    @staticmethod
    def _check(net: nn.Module) -> None:
        for component in net.children():
            if not isinstance(component, RandomNetwork) and not random_parts(component):
                check_plain(component)


def component_members(component: nn.Module) -> tuple[Member, ...]:
    """The members of a component: those of a random network, and a plain network itself."""
    return component.members() if isinstance(component, RandomNetwork) else (Member(1.0, component),)


def _support(component: nn.Module) -> int:
    if isinstance(component, RandomNetwork):
        return component.support
    return 0 if random_parts(component) else 1


def _has_random_layers(modes: Modes) -> bool:
    """Whether a component is no random network, but contains one: its weights are no part of a sample."""
    return any(
        _has_random_layers(part)
        if isinstance(part, Modes)
        else not isinstance(part, RandomNetwork) and random_parts(part)
        for part in modes.net
    )


def _normalised(weights: Sequence[float], count: int) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, weights))
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"weights must be a list of numbers, one for each network; got {shown(weights)}"
        ) from None
    if len(numbers) != count:
        raise ArgumentError(f"weights must hold one number for each of the {count} networks, got {len(numbers)}")
    total = math.fsum(numbers)
    if not all(number > 0 for number in numbers) or not math.isfinite(total):
        raise ArgumentError(
            f"weights must be positive and finite, got {list(numbers)}; leave out networks without weight"
        )
    if math.isclose(total, 1, rel_tol=1e-12):
        return numbers  # saved ones stay the same, bit for bit
    return tuple(number / total for number in numbers)
