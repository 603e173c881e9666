"""The attack inside the fast training step: compiled passes, and weight samples made ahead of their use."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from advbnn.attacks.gradient import LossGradient
from advbnn.attacks.losses import Objective
from advbnn.attacks.threat import Threat
from advbnn.defenses.defense import Defense
from advbnn.fast.attack_weights import AttackWeights
from advbnn.fast.compiling import compile_separately
from advbnn.fast.fused_net import FusedNet
from advbnn.training.objective import RobustLoss

Tensors = Mapping[str, Tensor]


class Passes:
    """The two passes of the network: the input gradient of the attack, and the loss of the update."""

    def __init__(
        self, attacking: FusedNet, updating: FusedNet, loss: RobustLoss, defense: Defense, compiled: bool
    ) -> None:
        likelihood = loss.objective.likelihood
        objective = None if defense.attack is None else defense.attack.objective

        def attack_objective(tensors: Tensors, folded: bool, x: Tensor, y: Tensor) -> Tensor:
            return objective(attacking(tensors, x, folded), y).sum()  # type: ignore[misc]

        def update_loss(weights: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            outputs = updating({**weights, **buffers}, x)
            return likelihood.nll(outputs, y).mean(), likelihood.score(outputs.detach(), y).sum()

        self._attacked: Callable[..., Tensor] = attack_objective
        self.loss: Callable[..., tuple[Tensor, Tensor]] = update_loss
        if compiled:
            self._attacked = compile_separately(attack_objective, fullgraph=True)
            self.loss = compile_separately(update_loss, fullgraph=True)

    def gradient(self, tensors: Tensors, folded: bool, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of the attack's objective in the input; none is computed for the weights."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._attacked(tensors, folded, leaf, y), leaf)
        return gradient


class FastOracle:
    """The gradients of PGD in training; like `attacks.oracle.Oracle`, but it never synchronizes the device.

    Each weight sample is drawn while the previous pass runs: layers on small images leave much of a GPU idle, and a
    stream of low priority uses it. The attack needs `count` gradients, and has used `streams` noise streams so far.
    """

    def __init__(self, weights: AttackWeights, seed: Tensor, passes: Passes, x: Tensor, count: int) -> None:
        self._weights, self._seed, self._passes, self._x, self._count = weights, seed, passes, x, count
        self.streams = 0
        # not while warming up, where it would disturb the benchmark of convolutions
        capturing = seed.is_cuda and torch.cuda.is_current_stream_capturing()
        self._side = torch.cuda.Stream(seed.device) if capturing else None
        self._ahead: dict[str, Tensor] | None = None

    def gradient(self, x: Tensor, y: Tensor, objective: Objective, eot: int = 1) -> LossGradient:
        """The gradient of the objective, averaged over `eot` weight samples; the rest of the slope is empty."""
        total = self._passes.gradient(self._next_weights(), self._weights.folded, x, y)
        for _ in range(eot - 1):
            total = total + self._passes.gradient(self._next_weights(), self._weights.folded, x, y)
        return LossGradient(values=total[:0], prediction=total[:0], gradient=total / eot if eot > 1 else total)

    def start(self, threat: Threat) -> Tensor:
        return threat.start(self._x)

    def report(self, done: int, total: int) -> None:
        """Nothing: training shows no progress of its attacks."""

    def _next_weights(self) -> dict[str, Tensor]:
        self.streams += 1
        if self._side is None:
            return self._weights.sample(self._seed, self.streams - 1)
        main = torch.cuda.current_stream(self._seed.device)
        weights = self._ahead if self._ahead is not None else self._sampled_aside(main, self.streams - 1)
        main.wait_stream(self._side)
        # the memory of the previous sample is free once the passes up to here are done
        self._ahead = self._sampled_aside(main, self.streams) if self.streams < self._count else None
        return weights

    def _sampled_aside(self, main: torch.cuda.Stream, stream: int) -> dict[str, Tensor]:
        assert self._side is not None
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            return self._weights.sample(self._seed, stream)
