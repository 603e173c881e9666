"""Optimizer settings of a defence. `build(parameters, examples)` makes the torch optimizer, for N examples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from advbnn.bayes.sgld import PSGLD, SGLD
from advbnn.errors import ArgumentError, check_types, positive_whole, shown, within

Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class _Optimizer:
    kind: ClassVar[str]
    lr: float = 0.01

    def __post_init__(self) -> None:
        check_types(self)
        within("lr", self.lr, "(0, 1e30]")
        within("weight_decay", getattr(self, "weight_decay", 0.0), "[0, 1e6]")


@dataclass(frozen=True, kw_only=True)
class SGDOptimizer(_Optimizer):
    """Stochastic gradient descent (Algorithm 1)."""

    kind = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        within("momentum", self.momentum, "[0, 1]")
        if self.nesterov and not self.momentum:
            raise ArgumentError("nesterov needs a momentum above 0, such as 0.9, got 0; set it or leave nesterov out")

    def build(self, parameters: Parameters, examples: int) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov
        )


@dataclass(frozen=True, kw_only=True)
class AdamOptimizer(_Optimizer):
    """Adam; its weight decay is decoupled from the gradient (AdamW)."""

    kind = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.betas, Sequence) or len(self.betas) != 2:
            raise ArgumentError(f"betas must be two numbers, such as (0.9, 0.999), got {shown(self.betas)}")
        for beta in self.betas:
            within("betas", beta, "[0, 1)")

    def build(self, parameters: Parameters, examples: int) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.lr, betas=self.betas, weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class LangevinSampler(_Optimizer):
    """Langevin dynamics: samples the posterior of the weights and keeps some of the samples (section 2.2).

    Args:
        lr: the step size, as for SGD; see `sgld.SGLD`.
        prior_std: standard deviation of the Gaussian prior over the weights.
        burn_in: updates before the first sample.
        every: updates between samples.
        temperature: 1 samples the posterior, smaller values a sharper one.
        preconditioned: adapt the step size to each weight during burn-in; see `sgld.PSGLD`.
    """

    kind = "langevin"
    prior_std: float = 1.0
    burn_in: int = 1000
    every: int = 100
    temperature: float = 1.0
    preconditioned: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        within("prior_std", self.prior_std, "(0, 1e30]")
        within("temperature", self.temperature, "[0, 1e6]", "1 is the posterior")
        for name in ("burn_in", "every"):
            positive_whole(name, getattr(self, name), most=1_000_000_000)

    def build(self, parameters: Parameters, examples: int) -> torch.optim.Optimizer:
        if self.preconditioned:
            return PSGLD(parameters, self.lr, data_size=examples, burn_in=self.burn_in, temperature=self.temperature)
        return SGLD(parameters, self.lr, data_size=examples, temperature=self.temperature)


def parameter_groups(model: nn.Module) -> Parameters:
    """The learned parameters for `build`; without weight decay those that a module names in `undecayed`, and with one
    of their own those in `decays`, such as {"weight": 1e-2}.

    The first are learned scales of noise: nothing but the loss may switch the noise off.
    """
    own: dict[int, float] = {}
    for part in model.modules():
        decays = dict.fromkeys(getattr(part, "undecayed", ()), 0.0) | getattr(part, "decays", {})
        own |= {id(getattr(part, name)): decay for name, decay in decays.items()}
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not own:
        return parameters
    groups: list[dict[str, Any]] = [{"params": [p for p in parameters if id(p) not in own]}]
    for decay in sorted(set(own.values())):
        groups.append({"params": [p for p in parameters if own.get(id(p)) == decay], "weight_decay": decay})
    return groups


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate; a tensor is filled in place, since a captured CUDA graph reads it there."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
