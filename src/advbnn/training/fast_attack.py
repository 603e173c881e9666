"""The attack inside the fast training step: compiled passes, and weight samples made ahead of their use."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from advbnn.attacks.gradient import LossGradient
from advbnn.attacks.losses import Objective
from advbnn.attacks.threat import Threat
from advbnn.defenses.defense import Defense
from advbnn.fast.attack_weights import AttackWeights
from advbnn.fast.compiling import compile_separately
from advbnn.fast.fused_net import FusedNet
from advbnn.fast.fused_sums import inductor_with_fused_sums
from advbnn.training.objective import RobustLoss, data_terms

Tensors = Mapping[str, Tensor]


class Passes:
    """The two passes of the network: the input gradient of the attack, and the loss of the update.

    With TRADES, the attack's target is the output for the clean input instead of the label. If the objective
    `takes_clean`, the update takes clean and perturbed inputs in one batch, clean ones first.
    """

    def __init__(
        self, attacking: FusedNet, updating: FusedNet, loss: RobustLoss, defense: Defense, compiled: bool
    ) -> None:
        self.attacking, self.updating, self._loss, self._defense = attacking, updating, loss, defense
        trades, kl = loss.objective.trades, loss.objective.likelihood.kl
        consistency = 0.0 if defense.averaging is None else defense.averaging.consistency
        objective = None if defense.attack is None else defense.attack.objective

        def attack_objective(tensors: Tensors, folded: bool, x: Tensor, y: Tensor) -> Tensor:
            outputs = attacking(tensors, x, folded)
            # the target of TRADES is the output for the clean input
            return (objective(outputs, y) if trades is None else kl(y, outputs)).sum()  # type: ignore[misc]

        def update_loss(
            weights: Tensors, buffers: Tensors, x: Tensor, y: Tensor, teacher: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            outputs = updating({**weights, **buffers}, x)
            terms, score = data_terms(loss.objective, outputs, y, None, teacher, consistency)
            return terms.mean(), score.sum()

        self._attacked: Callable[..., Tensor] = attack_objective
        self.loss: Callable[..., tuple[Tensor, Tensor]] = update_loss
        if compiled:
            self._attacked = compile_separately(attack_objective, fullgraph=True, backend=inductor_with_fused_sums)
            self.loss = compile_separately(update_loss, fullgraph=True)

    def gradient(self, tensors: Tensors, folded: bool, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of the attack's objective in the input; none is computed for the weights."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._attacked(tensors, folded, leaf, y), leaf)
        return gradient

    def plain(self) -> "Passes":
        """The same passes, not compiled, for the one batch of an epoch with another size."""
        return Passes(self.attacking, self.updating, self._loss, self._defense, compiled=False)


class FastOracle:
    """The gradients of PGD in training; like `attacks.oracle.Oracle`, but it never synchronizes the device.

    The attack will need `samples` weight samples. `streams` counts the noise streams used so far.
    """

    def __init__(self, weights: AttackWeights, seed: Tensor, passes: Passes, x: Tensor, samples: int) -> None:
        self._passes, self._x = passes, x
        self._samples = _SampledAhead(weights, seed, samples)
        self.streams = 0

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """The outputs of the network under attack, with one weight sample."""
        with self._samples.of(self.streams) as weights:
            outputs = self._passes.attacking(weights, x, self._samples.folded)
        self.streams += 1
        return outputs

    def gradient(self, x: Tensor, y: Tensor, objective: Objective, eot: int = 1) -> LossGradient:
        """The gradient of the objective, averaged over `eot` weight samples; the rest of the slope is empty."""
        total: Tensor | None = None
        for _ in range(eot):
            with self._samples.of(self.streams) as weights:
                gradient = self._passes.gradient(weights, self._samples.folded, x, y)
            total = gradient if total is None else total + gradient
            self.streams += 1
        assert total is not None
        return LossGradient(values=total[:0], prediction=total[:0], gradient=total / eot if eot > 1 else total)

    def start(self, threat: Threat) -> Tensor:
        """A random point of the allowed set around each example."""
        return threat.start(self._x)

    def report(self, done: int, total: int) -> None:
        """Training shows no progress of its attacks."""


class _SampledAhead:
    """Weight samples for one pass after another, each sampled while the previous pass runs.

    Layers on small images leave much of a GPU idle; a stream of low priority uses it for the next sample.
    """

    def __init__(self, weights: AttackWeights, seed: Tensor, count: int) -> None:
        self._weights, self._seed, self._count = weights, seed, count
        self.folded = weights.folded
        # not while warming up, where it would disturb the benchmark of convolutions
        capturing = seed.is_cuda and torch.cuda.is_current_stream_capturing()
        self._side = torch.cuda.Stream(seed.device) if capturing else None
        self._next: dict[int, dict[str, Tensor]] = {}

    @contextmanager
    def of(self, stream: int) -> Iterator[Tensors]:
        """The weight sample of a noise stream; its memory is reused after the block."""
        if self._side is None:
            yield self._weights.sample(self._seed, stream)
            return
        main = torch.cuda.current_stream(self._seed.device)
        if stream not in self._next:
            self._side.wait_stream(main)
            self._sample(stream)
        main.wait_stream(self._side)
        weights = self._next.pop(stream)
        if stream + 1 < self._count:
            # the memory of the previous sample is free once the passes up to here are done
            self._side.wait_stream(main)
            self._sample(stream + 1)
        yield weights

    def _sample(self, stream: int) -> None:
        with torch.cuda.stream(self._side):
            self._next[stream] = self._weights.sample(self._seed, stream)
