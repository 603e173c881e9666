"""Optimizers as values: what a defence says about them, and what builds them."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advbnn.bayes.sgld import PSGLD, SGLD
from advbnn.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent (Algorithm 1)."""

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check_lr(self.lr)

    def build(self, parameters: Iterable[nn.Parameter], examples: int) -> torch.optim.Optimizer:
        """The optimizer of `parameters`, for a training set of so many examples."""
        return torch.optim.SGD(
            parameters,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam; with a weight decay it is decoupled from the gradient (AdamW)."""

    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_lr(self.lr)

    def build(self, parameters: Iterable[nn.Parameter], examples: int) -> torch.optim.Optimizer:
        """The optimizer of `parameters`, for a training set of so many examples."""
        return torch.optim.AdamW(parameters, lr=self.lr, betas=self.betas, weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class Langevin:
    """Langevin dynamics: the weights wander through their posterior, and samples of them are kept (section 2.2).

    Args:
        lr: the step size, as for SGD; see `sgld.SGLD`.
        prior_std: standard deviation of the Gaussian prior over the weights.
        burn_in: updates before the first sample.
        every: updates from one sample to the next.
        temperature: 1 samples the posterior, less a sharper one.
        preconditioned: adapt the step to each weight during the burn-in; see `sgld.PSGLD`.
    """

    lr: float = 0.01
    prior_std: float = 1.0
    burn_in: int = 1000
    every: int = 100
    temperature: float = 1.0
    preconditioned: bool = False

    def __post_init__(self) -> None:
        _check_lr(self.lr)
        if not self.prior_std > 0:
            raise ArgumentError(f"prior_std must be positive, got {self.prior_std}")
        if self.burn_in < 1 or self.every < 1:
            raise ArgumentError(f"burn_in and every must be at least 1 update, got {self.burn_in} and {self.every}")

    def build(self, parameters: Iterable[nn.Parameter], examples: int) -> torch.optim.Optimizer:
        """The optimizer of `parameters`, for a training set of so many examples."""
        if self.preconditioned:
            return PSGLD(parameters, self.lr, data_size=examples, burn_in=self.burn_in, temperature=self.temperature)
        return SGLD(parameters, self.lr, data_size=examples, temperature=self.temperature)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Changes the learning rate; one that is a tensor keeps its place in memory, as a recorded graph needs."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def _check_lr(lr: float) -> None:
    if not lr > 0:
        raise ArgumentError(f"lr must be positive, got {lr}")
