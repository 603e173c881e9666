"""The training step in its fast forms: compiled, or recorded once as a CUDA graph and replayed.

It does what `advbnn.training.step.EagerStep` does, in half precision and without ever waiting for the device: the weights of all
passes are drawn by counter-based noise straight into the precision of the computation, an attack computes gradients of
its input alone, and the divergence enters as its gradient in the backward pass of the draw (appendix B).
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from advbnn.attacks import PGD
from advbnn.attacks.gradient import Slope
from advbnn.attacks.losses import Objective
from advbnn.attacks.threat import Threat
from advbnn.bayes.kl import names_in_scope
from advbnn.bayes.likelihoods import Categorical
from advbnn.bayes.protocol import RandomNetwork, inner_network, random_parts
from advbnn.defenses.defense import Defense
from advbnn.defenses.optimizers import Langevin
from advbnn.distributed import ALONE, World
from advbnn.errors import UnsupportedError
from advbnn.fast.attack_weights import AttackWeights, UnfoldedWeights, attack_weights
from advbnn.fast.compiling import compile_separately
from advbnn.fast.cuda_graph import GraphedStep, make_capturable
from advbnn.fast.fused_net import FusedNet
from advbnn.fast.weights import FixedWeights, SampledWeights
from advbnn.modules import training
from advbnn.randomness import seeded
from advbnn.training.objective import RobustLoss
from advbnn.training.step import StepRecord

_CLEAN_STREAM = 2**30
"""The stream of the draw that measures clean accuracy: past those of any attack, and 32 bits with its sign."""
_Tensors = Mapping[str, Tensor]


class FastStep:
    """One training step, called like `EagerStep`, of a network that is in training mode as a whole.

    Args:
        loss: the robust ELBO of the model.
        optimizer: of all that is learned; it is switched to its fused form.
        defense: attack, clipping and the rest.
        processes: those that share the work; each attacks its own shard, and gradients are averaged.
        precision: type of the matrix products; parameters, images, statistics and losses stay in float32.
        compiled: compile the passes of the network.
        captured: record the whole step as a CUDA graph at the first batch, and replay it for batches of that shape.

    Raises:
        UnsupportedError: with the reason, if the step cannot be done in this form.
    """

    def __init__(
        self,
        loss: RobustLoss,
        optimizer: torch.optim.Optimizer,
        defense: Defense,
        processes: World = ALONE,
        *,
        precision: torch.dtype = torch.bfloat16,
        compiled: bool = True,
        captured: bool = True,
    ) -> None:
        _check_supported(loss, defense)
        self.loss, self.optimizer, self.defense, self.processes = loss, optimizer, defense, processes
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._not_learned = [p for p in loss.parameters() if not p.requires_grad]
        self.captured = captured
        model = loss.model
        net = inner_network(model)
        device = next(model.parameters()).device
        if device.type == "cuda":
            _lay_out_channels_last(model)
        self.weights = _weights_of(loss, precision, compiled)
        self.buffers = dict(net.named_buffers())
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        self.factor, self.share = (torch.ones((), device=device) for _ in range(2))
        self._measuring, updating = (_fused_net(net, precision, mode) for mode in (False, True))
        self.attack_weights: AttackWeights
        if defense.attack_mode == "train":
            attacking = updating
            # statistics of its own, which nobody reads, since an attack must not change those of the network
            self.attack_weights = UnfoldedWeights(self.weights, {name: b.clone() for name, b in self.buffers.items()})
        else:
            attacking = self._measuring
            self.attack_weights = attack_weights(self.weights, attacking, self.buffers, compiled)
        self.passes = _Passes(attacking, updating, loss, defense, compiled)
        self._plain_passes = self.passes.plain()
        self._graphs: dict[tuple[torch.Size, float], GraphedStep] = {}
        self._clean_graph: GraphedStep | None = None

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        seed: int,
        *,
        kl_factor: float | Tensor = 1.0,
        share: float = 1.0,
        measure_clean: bool = False,
    ) -> StepRecord:
        """Update the model on one batch; see `EagerStep`."""
        self.seed.fill_(seed)
        self.factor.fill_(kl_factor)
        self.share.fill_(share)
        if x.is_cuda and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        # of the noise other than that of the weights: of a random start, or of a noisy network
        with seeded(seed, x.device):
            results = self._recording(x, y, share).replay(x, y) if self.captured else self._step(x, y)
            clean = self._measured_clean(x, y) if measure_clean else None
        total, nll, kl, score = results.unbind()
        return StepRecord(loss=total, nll=nll, kl=kl, score=score, clean_score=clean, examples=len(x))

    def with_optimizer(self, optimizer: torch.optim.Optimizer) -> "FastStep":
        """The same step with another optimizer; what was compiled is kept, and the step is recorded anew."""
        step = copy.copy(self)
        step.optimizer = optimizer
        step.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        step._graphs = {}
        return step

    def _recording(self, x: Tensor, y: Tensor, share: float) -> "GraphedStep":
        """The step for batches of this size; the largest size is compiled, the last batch of an epoch is not."""
        # Warming up shares gradients, so all processes have to record at the same step. Where shards of a batch differ
        # in size, that of one process may be as large as ever, but the share of none is what it was.
        kind = (x.shape, share)
        if kind not in self._graphs:
            # not earlier: a checkpoint may have brought the optimizer another state
            make_capturable(self.optimizer)
            largest = all(len(x) >= len(recording.x) for recording in self._graphs.values())
            passes = self.passes if largest else self._plain_passes
            self._graphs[kind] = GraphedStep(lambda x, y: self._step(x, y, passes), x, y, self._state)
        return self._graphs[kind]

    def _step(self, x: Tensor, y: Tensor, passes: "_Passes | None" = None) -> Tensor:
        """Lines 6 to 12 of Algorithm 1; what it returns are total loss, data term, divergence and score."""
        passes = self.passes if passes is None else passes
        self.weights.refresh()
        self.attack_weights.refresh()
        kl = self.weights.kl()
        kl = torch.zeros_like(self.share) if kl is None else kl
        attack, draws = self.defense.attack, self.loss.objective.draws
        oracle = _Oracle(self, passes, x, draws=0 if attack is None else attack.steps * attack.eot)
        x_adv = x if attack is None else attack._perturb(oracle, x, y)  # type: ignore[arg-type]
        nll, score = torch.zeros_like(self.share), torch.zeros_like(self.share)
        for draw in range(draws):
            stream = oracle.streams + draw
            weights = {name: w.requires_grad_() for name, w in self.weights.sample(self.seed, stream).items()}
            term, correct = passes.loss(weights, self.buffers, x_adv, y)
            # a bias that normalisation takes away is not used, and its gradient zero
            grads = torch.autograd.grad(term * self.share / draws, list(weights.values()), materialize_grads=True)
            self.weights.backward(
                dict(zip(weights, grads, strict=True)), self.seed, stream, self.factor, first=draw == 0
            )
            nll, score = nll + term.detach() / draws, score + correct / draws
        for parameter in self._not_learned:
            parameter.grad = None
        self.processes.average_(p.grad for p in self.parameters if p.grad is not None)
        if self.defense.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.defense.clip)
        self.optimizer.step()
        objective = self.loss.objective
        total = nll + objective.alpha / self.loss.examples * self.factor * kl
        return torch.stack([total, nll, kl, score])

    def _measured_clean(self, x: Tensor, y: Tensor) -> Tensor:
        if self.captured and self._clean_graph is None:
            self._clean_graph = GraphedStep(self._clean_score, x, y, list)
        if self._clean_graph is not None and self._clean_graph.fits(x):
            return self._clean_graph.replay(x, y)
        return self._clean_score(x, y)

    @torch.no_grad()
    def _clean_score(self, x: Tensor, y: Tensor) -> Tensor:
        self.weights.refresh()
        tensors = {**self.weights.sample(self.seed, _CLEAN_STREAM), **self.buffers}
        return self.loss.objective.likelihood.score(self._measuring(tensors, x), y).sum()

    def _state(self) -> list[Tensor]:
        """All that a step changes, so that warming up can be undone."""
        states = self.optimizer.state.values()
        kept = [t for state in states for t in state.values() if isinstance(t, Tensor)]
        return [*self.loss.parameters(), *self.loss.buffers(), *kept]


class _Passes:
    """The two passes of the network: the gradient of an input, and the loss of an update."""

    def __init__(
        self, attacking: FusedNet, updating: FusedNet, loss: RobustLoss, defense: Defense, compiled: bool
    ) -> None:
        self.attacking, self.updating, self._loss, self._defense = attacking, updating, loss, defense
        likelihood = loss.objective.likelihood
        objective = None if defense.attack is None else defense.attack.objective

        def attack_objective(tensors: _Tensors, folded: bool, x: Tensor, y: Tensor) -> Tensor:
            return objective(attacking(tensors, x, folded), y).sum()  # type: ignore[misc]

        def update_loss(weights: _Tensors, buffers: _Tensors, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            outputs = updating({**weights, **buffers}, x)
            return likelihood.nll(outputs, y).mean(), likelihood.score(outputs.detach(), y).sum()

        self._attacked: Callable[..., Tensor] = attack_objective
        self.loss: Callable[..., tuple[Tensor, Tensor]] = update_loss
        if compiled:
            self._attacked = compile_separately(attack_objective, fullgraph=True)
            self.loss = compile_separately(update_loss, fullgraph=True)

    def gradient(self, tensors: _Tensors, folded: bool, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of the attack's objective; the weights ask for none, so that none of theirs is computed."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._attacked(tensors, folded, leaf, y), leaf)
        return gradient

    def plain(self) -> "_Passes":
        """The same without the compiler, for the one batch of an epoch that has another size."""
        return _Passes(self.attacking, self.updating, self._loss, self._defense, compiled=False)


class _Oracle:
    """What PGD asks during training, answered without a look at the answers: nothing here waits for the device."""

    def __init__(self, step: FastStep, passes: _Passes, x: Tensor, draws: int) -> None:
        self._passes, self._x = passes, x
        self._weights = _DrawnAhead(step.attack_weights, step.seed, draws)
        self.streams = 0

    def gradient(self, x: Tensor, y: Tensor, objective: Objective, eot: int = 1) -> Slope:
        """The gradient of the objective, averaged over `eot` draws of their own; the rest of a slope is not asked."""
        total: Tensor | None = None
        for _ in range(eot):
            with self._weights.of(self.streams) as weights:
                gradient = self._passes.gradient(weights, self._weights.folded, x, y)
            total = gradient if total is None else total + gradient
            self.streams += 1
        assert total is not None
        unasked = total[:0]
        return Slope(values=unasked, prediction=unasked, gradient=total / eot if eot > 1 else total)

    def start(self, threat: Threat) -> Tensor:
        """A random point of the allowed set around each example."""
        return threat.start(self._x)

    def report(self, done: int, total: int) -> None:
        """Nobody listens."""


class _DrawnAhead:
    """Draws for one pass after another, each made while the pass before it runs.

    The layers of small images leave much of a GPU idle, and a stream of low priority uses that for the next draw.
    """

    def __init__(self, weights: AttackWeights, seed: Tensor, draws: int) -> None:
        self._weights, self._seed, self._draws = weights, seed, draws
        self.folded = weights.folded
        # not while warming up, where it would disturb the search for the fastest convolutions
        capturing = seed.is_cuda and torch.cuda.is_current_stream_capturing()
        self._side = torch.cuda.Stream(seed.device) if capturing else None
        self._next: dict[int, dict[str, Tensor]] = {}

    @contextmanager
    def of(self, stream: int) -> Iterator[_Tensors]:
        """The draw of a stream of noise; its memory is used again when the block is left."""
        if self._side is None:
            yield self._weights.sample(self._seed, stream)
            return
        main = torch.cuda.current_stream(self._seed.device)
        if stream not in self._next:
            self._side.wait_stream(main)
            self._draw(stream)
        main.wait_stream(self._side)
        weights = self._next.pop(stream)
        if stream + 1 < self._draws:
            # the memory of the last draw is free once the passes up to here are over
            self._side.wait_stream(main)
            self._draw(stream + 1)
        yield weights

    def _draw(self, stream: int) -> None:
        with torch.cuda.stream(self._side):
            self._next[stream] = self._weights.sample(self._seed, stream)


def _fused_net(net: nn.Module, precision: torch.dtype, training: bool) -> FusedNet:
    try:
        return FusedNet(net, precision, training)
    except Exception as error:  # whatever a network of unknown origin raises when it is copied
        raise UnsupportedError(f"{type(net).__name__} cannot be copied: {error}") from error


def _lay_out_channels_last(model: nn.Module) -> None:
    # not by `model.to`, which wants to do the same to the weights of three-dimensional convolutions, and fails
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)


def _weights_of(loss: RobustLoss, precision: torch.dtype, compiled: bool) -> FixedWeights | SampledWeights:
    model = loss.model
    if not isinstance(model, RandomNetwork):
        return FixedWeights(dict(model.named_parameters()), precision)
    inside = set(names_in_scope(model, loss.objective.kl_scope))
    weight = loss.objective.alpha / loss.examples
    return SampledWeights(model, precision, lambda name: weight if name in inside else 0.0, compiled)


def _has_frozen_parts(model: nn.Module) -> bool:
    with training(model):
        return not all(part.training for part in model.modules())


def _check_supported(loss: RobustLoss, defense: Defense) -> None:
    attack = defense.attack
    reasons = {
        "a Gaussian likelihood": not isinstance(loss.objective.likelihood, Categorical),
        "TRADES": loss.objective.trades is not None,
        "adversarial weight perturbation": defense.awp is not None,
        "sampling by Langevin dynamics": isinstance(defense.optimizer, Langevin),
        "an attack other than PGD": attack is not None and not isinstance(attack, PGD),
        "an attack that compares candidates": attack is not None and (attack.restarts > 1 or attack.pick != "last"),
        "an attack on averaged outputs": attack is not None and attack.eot > 1 and attack.average != "loss",
        "a model with several random parts": bool(random_parts(inner_network(loss.model))),
        "random weights without a Gaussian posterior": bool(random_parts(loss.model)) and not loss.is_bayesian,
        "a prior over weights that are not random": loss.prior is not None and not loss.is_bayesian,
        "normalisation without a momentum, which looks at its count of batches": any(
            isinstance(part, _BatchNorm) and part.momentum is None and part.track_running_stats
            for part in loss.modules()
        ),
        "parts that are kept in evaluation mode": _has_frozen_parts(loss.model),
        "parameters that are not float32": any(p.dtype != torch.float32 for p in loss.parameters()),
    }
    for reason, applies in reasons.items():
        if applies:
            raise UnsupportedError(f"the fast step does not know {reason}")
