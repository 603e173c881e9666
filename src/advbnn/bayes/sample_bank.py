"""A posterior as a bank of weight samples, such as those that Langevin dynamics keeps (section 2.2)."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.functional import call_with, module_tree, parameter_paths
from advbnn.errors import ArgumentError, ArgumentTypeError


class SampleBank(nn.Module):
    """A network whose weights are one of the stored samples, chosen anew at every call.

    It stands wherever a `Bayesian` does: `predict`, `Ensemble` and attacks see a random network. The choice comes
    from torch's default generator of the CPU. Samples are buffers, so `state_dict` and safetensors carry them, and
    loading makes room for as many as were saved. In training mode BatchNorm uses the batch at hand, and the stored
    running statistics stay as they are.

    Attributes:
        net: the network that was handed in, with its own weights: the present state of the chain.
    """

    net: nn.Module
    samples: nn.ModuleList

    def __init__(self, net: nn.Module) -> None:
        """An empty bank for samples of the weights of `net`, which is wrapped, not copied."""
        super().__init__()
        if not isinstance(net, nn.Module):
            raise ArgumentTypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
        self.net = net
        self.samples = nn.ModuleList()
        self.training = net.training
        self._places = parameter_paths(_tensors(net), net)
        self._frozen: int | None = None

    def __len__(self) -> int:
        """The number of stored samples."""
        return len(self.samples)

    def add(self, net: nn.Module | None = None) -> None:
        """Store a copy of the parameters and persistent buffers (BatchNorm's statistics) of a network.

        Args:
            net: a network built like the bank's own, such as that of another chain; the bank's own when None.
        """
        tensors = _tensors(self.net if net is None else net)
        differences = _signatures(tensors) ^ _signatures(_tensors(self.net))
        if differences:
            raise ArgumentError(f"net must be built like the bank's own; they differ in {min(differences)[0]!r}")
        sample = module_tree((name, tensor.detach().clone()) for name, tensor in tensors.items())
        self.samples.append(sample.train(self.training))

    def sample(self, index: int | None = None) -> dict[str, Tensor]:
        """One stored sample by name, without copying; a random one when `index` is None."""
        if not len(self):
            raise ArgumentError("the bank holds no sample yet; store some with bank.add() after the burn-in")
        if index is None:
            index = int(torch.randint(len(self), ()))
        elif not 0 <= index < len(self):
            raise ArgumentError(f"index must be one of the {len(self)} samples, 0 to {len(self) - 1}; got {index}")
        return dict(self.samples[index].named_buffers())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output with a sample chosen at random, or with that of the enclosing `frozen` block."""
        return self.run(self.sample(self._frozen), *args, **kwargs)

    def run(self, weights: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """The network's output with given weights, such as those of `sample(index)`."""
        if any(module.training for module in self.net.modules()):
            # a forward pass in training mode writes into BatchNorm's statistics
            statistics = dict(self.net.named_buffers())
            weights = {name: w.clone() if name in statistics else w for name, w in weights.items()}
        return call_with(self.net, weights, self._places, args, kwargs)

    @contextmanager
    def frozen(self, seed: int | None = None, *, index: int | None = None) -> Iterator["SampleBank"]:
        """Within the block every forward pass uses one and the same sample: a deterministic network.

        Args:
            seed: the choice of the first forward pass after seeding torch with it; a fresh one when None.
            index: the sample itself, instead of a seed.
        """
        if seed is not None and index is not None:
            raise ArgumentError("frozen takes a seed or an index, not both")
        if index is None and len(self):
            generator = None if seed is None else torch.Generator().manual_seed(seed)
            index = int(torch.randint(len(self), (), generator=generator))
        self.sample(index)  # refuses what is not there on entry, not at the first call
        outer, self._frozen = self._frozen, index
        try:
            yield self
        finally:
            self._frozen = outer

    def extra_repr(self) -> str:
        """The number of samples, for `print`."""
        return f"stored={len(self)}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        beginning = f"{prefix}samples."
        saved = {key.removeprefix(beginning).split(".")[0] for key in state_dict if key.startswith(beginning)}
        while len(self) > len(saved):
            del self.samples[-1]
        while len(self) < len(saved):
            self.add()
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        # the enclosing `frozen` block does not belong to a copy
        return {**self.__dict__, "_frozen": None}


def _tensors(net: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer under its first name."""
    transient = {id(m._buffers[name]) for m in net.modules() for name in m._non_persistent_buffers_set}
    held = chain(net.named_parameters(), net.named_buffers())
    return {name: tensor for name, tensor in held if id(tensor) not in transient}


def _signatures(tensors: dict[str, Tensor]) -> set[tuple[str, tuple[int, ...], str]]:
    return {(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items()}
