"""A posterior as a bank of stored weight samples, such as those of Langevin dynamics (section 2.2)."""

from typing import Any

import torch
from torch import Tensor, nn

from advbnn.bayes.functional import module_tree, network_with, saved_tensors
from advbnn.bayes.protocol import Member, RandomNetwork, Weights
from advbnn.errors import ArgumentError


class SampleBank(RandomNetwork):
    """A network whose weights are one of the stored samples, chosen at random at every call.

    The choice uses torch's default generator of the CPU. Samples are buffers, so `state_dict` and safetensors hold
    them, and loading makes room for as many as were saved. In training mode BatchNorm uses batch statistics, and the
    stored running statistics do not change.
    The wrapped `net` keeps its own weights: the current state of the chain.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.samples = nn.ModuleList()

    def __len__(self) -> int:
        return len(self.samples)

    def add(self, net: nn.Module | None = None) -> None:
        """Store a copy of the weights and statistics of the bank's network, or of one that is built like it."""
        tensors = saved_tensors(self.net if net is None else net)
        differences = _signatures(tensors) ^ _signatures(saved_tensors(self.net))
        if differences:
            raise ArgumentError(f"net must be built like the bank's own; they differ in {min(differences)[0]!r}")
        sample = module_tree((name, tensor.detach().clone()) for name, tensor in tensors.items())
        self.samples.append(sample.train(self.training))

    def sample(self, index: int | None = None) -> Weights:
        """One stored sample, not copied; a random one when `index` is None."""
        if not len(self):
            raise ArgumentError("the bank holds no sample yet; store some with bank.add() after the burn-in")
        if index is None:
            index = int(torch.randint(len(self), ()))
        elif not 0 <= index < len(self):
            raise ArgumentError(f"index must be one of the {len(self)} samples, 0 to {len(self) - 1}; got {index}")
        return dict(self.samples[index].named_buffers())

    def run(self, weights: Weights, *args: Any, **kwargs: Any) -> Any:
        if any(module.training for module in self.net.modules()):
            # a forward pass in training mode writes to BatchNorm's statistics
            statistics = dict(self.net.named_buffers())
            weights = {name: w.clone() if name in statistics else w for name, w in weights.items()}
        return super().run(weights, *args, **kwargs)

    @property
    def support(self) -> int:
        return len(self)

    def members(self) -> tuple[Member, ...]:
        """Each stored sample as a plain network, all equally probable; they share the memory of the bank."""
        return tuple(Member(1 / len(self), network_with(self.net, self.sample(k))) for k in range(len(self)))

    def extra_repr(self) -> str:
        return f"stored={len(self)}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        beginning = f"{prefix}samples."
        saved = {key.removeprefix(beginning).split(".")[0] for key in state_dict if key.startswith(beginning)}
        while len(self) > len(saved):
            del self.samples[-1]
        while len(self) < len(saved):
            self.add()
        super()._load_from_state_dict(state_dict, prefix, *args)


def _signatures(tensors: dict[str, Tensor]) -> set[tuple[str, tuple[int, ...], str]]:
    return {(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items()}
