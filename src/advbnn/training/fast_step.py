"""The training step in its fast forms: compiled, or captured once as a CUDA graph and replayed.

It does what `EagerStep` does, in half precision and without synchronizing the device. Counter-based noise is sampled in
the precision of the computation, the attack computes gradients of its input only, and the KL enters as its gradient in
the backward pass of the weight sample (appendix B).
"""

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from advbnn.attacks import PGD
from advbnn.bayes.kl import kl_divergence, names_in_scope
from advbnn.bayes.protocol import RandomNetwork, inner_network
from advbnn.bayes.sgld import negative_log_prior
from advbnn.defenses.defense import Defense
from advbnn.defenses.kept_draw import KeptDraw
from advbnn.errors import UnsupportedError
from advbnn.fast.attack_weights import AttackWeights, UnfoldedWeights, attack_weights
from advbnn.fast.cuda_graph import GraphedStep, make_capturable
from advbnn.fast.fused_net import FusedNet
from advbnn.fast.prior_term import PriorTerm
from advbnn.fast.weights import FixedWeights, SampledWeights
from advbnn.machine.processes import ALONE, World
from advbnn.randomness import seeded
from advbnn.training.averaging import WeightAverage, by_type
from advbnn.training.awp import climb, perturbable
from advbnn.training.fast_attack import FastOracle, Passes
from advbnn.training.fast_support import check_supported
from advbnn.training.objective import RobustLoss
from advbnn.training.step import StepRecord

_CLEAN_STREAM, _TEACHER_STREAM = 2**30, 2**30 + 1
"""Noise streams of the clean score and of the teacher: beyond those of any attack, and within 32 bits with sign."""

_CAPTURED_AFTER = 4
"""The occurrence at which a further kind of batch is captured, since capturing takes as long as several steps."""


class Form(NamedTuple):
    """What a step does: its attack, whether it perturbs the weights, and its teacher."""

    attack: PGD | None
    perturbed: bool = False
    teacher: WeightAverage | None = None


class FastStep:
    """One training step, called like `EagerStep`, of a network with all parts in training mode.

    Args:
        optimizer: of all learned parameters; switched to its fused form.
        processes: the processes that train together; each attacks its shard, and gradients are averaged.
        precision: dtype of the matrix products; parameters, images, statistics and losses stay in float32.
        compiled: compile the forward and backward passes.
        captured: capture the whole step as a CUDA graph at the first batch, and replay it for batches of that shape.

    Raises:
        UnsupportedError: with the reason, if the step has no fast form.
    """

    why_eager = None

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
        check_supported(loss, defense)
        self.loss, self.optimizer, self.defense, self.processes = loss, optimizer, defense, processes
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._not_learned = [p for p in loss.parameters() if not p.requires_grad]
        self.captured = captured
        model = loss.model
        net = inner_network(model)
        device = next(model.parameters()).device
        if device.type == "cuda":
            _to_channels_last(model)
        self.weights, self._prior_term = _weights_of(loss, precision, compiled)
        self._penalty = None
        if loss.penalty() is not None:
            self._penalty = PriorTerm(lambda: cast(Tensor, loss.penalty()), list(model.parameters()), 1.0)
        self._kept_draws = [part for part in model.modules() if isinstance(part, KeptDraw)]
        self.buffers = dict(net.named_buffers())
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        self.factor, self.share = (torch.ones((), device=device) for _ in range(2))
        self._measuring, updating = (_fused_net(net, precision, mode) for mode in (False, True))
        self.attack_weights: AttackWeights
        if defense.attack_mode == "train":
            attacking = updating
            # its own copy of the statistics, since an attack must not change those of the network; not of kept draws,
            # which are not stored with the weights
            copied = net.state_dict() if self._kept_draws else self.buffers
            own = {name: b.clone() if name in copied else b for name, b in self.buffers.items()}
            self.attack_weights = UnfoldedWeights(self.weights, own)
        else:
            attacking = self._measuring
            self.attack_weights = attack_weights(self.weights, attacking, self.buffers, compiled)
        self.passes = Passes(attacking, updating, loss, defense, compiled)
        self._plain_passes = self.passes.plain()
        self._perturbable = [] if defense.awp is None else perturbable(model)
        # the ascent step of AWP must not change the statistics of the network
        self._scratch = {} if defense.awp is None else {name: b.clone() for name, b in self.buffers.items()}
        self._scratch_pairs = by_type(self._scratch.values(), self.buffers.values() if self._scratch else ())
        self._graphs: dict[tuple[torch.Size, float, Form], GraphedStep] = {}
        self._seen: Counter[tuple[torch.Size, float, Form]] = Counter()
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
        attack: PGD | None = None,
        perturb_weights: bool = True,
        teacher: WeightAverage | None = None,
    ) -> StepRecord:
        """Update the model on one batch; see `EagerStep`."""
        self.seed.fill_(seed)
        self.factor.fill_(kl_factor)
        self.share.fill_(share)
        if x.is_cuda and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        # for noise besides the weights: a random start, or a noisy network
        with seeded(seed, x.device):
            form = Form(attack or self.defense.attack, perturb_weights and self.defense.awp is not None, teacher)
            results = self._replayed(x, y, share, form) if self.captured else self._step(x, y, form)
            clean = self._measured_clean(x, y) if measure_clean else None
        total, nll, kl, score = results.unbind()
        return StepRecord(loss=total, nll=nll, kl=kl, score=score, clean_score=clean, examples=len(x))

    def with_optimizer(self, optimizer: torch.optim.Optimizer) -> "FastStep":
        """The same step with another optimizer; compiled passes are kept, and the step is captured again."""
        step = copy.copy(self)
        step.optimizer = optimizer
        step.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        step._graphs, step._seen = {}, Counter()
        return step

    def _replayed(self, x: Tensor, y: Tensor, share: float, form: Form) -> Tensor:
        """The captured step for batches of this size; largest ones are compiled, a smaller last batch is not.

        The first batches of another kind than the very first run as they are: a short training does not pay for
        capturing its few smaller batches.
        """
        # Warming up averages gradients, so all processes must capture at the same step. With shards of unequal size,
        # a process may keep its shape when another does not, but the share changes in all of them.
        kind = (x.shape, share, form)
        if kind in self._graphs:
            return self._graphs[kind].replay(x, y)
        # not earlier: a checkpoint may have replaced the state of the optimizer
        make_capturable(self.optimizer)
        # a radius that has grown does not come back
        self._graphs = {known: graph for known, graph in self._graphs.items() if known[2].attack == form.attack}
        self._seen[kind] += 1
        if self._graphs and self._seen[kind] < _CAPTURED_AFTER:
            return self._step(x, y, form, self._plain_passes)
        largest = all(len(x) >= len(graph.x) for graph in self._graphs.values())
        passes = self.passes if largest else self._plain_passes
        self._graphs[kind] = GraphedStep(lambda x, y: self._step(x, y, form, passes), x, y, self._state)
        return self._graphs[kind].replay(x, y)

    def _step(self, x: Tensor, y: Tensor, form: Form, passes: Passes | None = None) -> Tensor:
        """Lines 6 to 12 of Algorithm 1; returns total loss, data term, KL and score."""
        passes = self.passes if passes is None else passes
        self._redraw()
        self.weights.refresh()
        self.attack_weights.refresh()
        inputs, stream = self._attacked(x, y, form.attack, passes)
        self._redraw(for_update=True)
        teacher = None if form.teacher is None else self._outputs_of(form.teacher, inputs[-len(x) :])
        update = partial(self._gradients, inputs, y, teacher, stream, passes)
        kept = self._climb(update) if form.perturbed else []
        nll, score, kl, penalty = update(self.buffers)
        with torch.no_grad():
            if form.perturbed:
                torch._foreach_copy_(self._perturbable, kept)
        for parameter in self._not_learned:
            parameter.grad = None
        self.processes.average_(p.grad for p in self.parameters if p.grad is not None)
        if self.defense.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.defense.clip)
        self.optimizer.step()
        total = nll + penalty + self.loss.objective.alpha / self.loss.examples * self.factor * kl
        return torch.stack([total, nll, kl, score])

    @torch.no_grad()
    def _redraw(self, for_update: bool = False) -> None:
        """One draw of kept randomness for the whole attack, another for the update; see `attacked`."""
        for part in self._kept_draws:
            part.redraw_for_update() if for_update else part.redraw()

    def _attacked(self, x: Tensor, y: Tensor, attack: PGD | None, passes: Passes) -> tuple[Tensor, int]:
        """The inputs of the update, and its first noise stream."""
        trades = self.loss.objective.trades is not None
        if attack is None:
            return x, 0
        oracle = FastOracle(self.attack_weights, self.seed, passes, x, attack.steps * attack.eot + trades)
        target = oracle.outputs(x) if trades else y
        x_adv = attack._perturb(oracle, x, target)  # type: ignore[arg-type]
        return torch.cat([x, x_adv]) if self.loss.objective.takes_clean else x_adv, oracle.streams

    @torch.no_grad()
    def _outputs_of(self, teacher: WeightAverage, x: Tensor) -> Tensor:
        """The outputs of the averaged network for a batch, with the statistics of the batch."""
        with teacher.applied(self.loss.model):
            self.weights.refresh()
            outputs = self.passes.updating({**self.weights.sample(self.seed, _TEACHER_STREAM), **self.buffers}, x)
        self.weights.refresh()
        return outputs

    def _gradients(
        self,
        inputs: Tensor,
        y: Tensor,
        teacher: Tensor | None,
        stream: int,
        passes: Passes,
        buffers: Mapping[str, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Data term, score, KL and penalty, with the gradient of the loss in `.grad` of the parameters."""
        samples = self.loss.objective.samples
        nll, score = torch.zeros_like(self.share), torch.zeros_like(self.share)
        for sample in range(samples):
            drawn = self.weights.sample(self.seed, stream + sample)
            weights = {name: w.requires_grad_() for name, w in drawn.items()}
            term, correct = passes.loss(weights, buffers, inputs, y, teacher)
            # a bias cancelled by BatchNorm is unused and has gradient zero
            grads = torch.autograd.grad(term * self.share / samples, list(weights.values()), materialize_grads=True)
            arrived = dict(zip(weights, grads, strict=True))
            self.weights.backward(arrived, self.seed, stream + sample, self.factor, first=sample == 0)
            nll, score = nll + term.detach() / samples, score + correct / samples
        none = torch.zeros_like(nll)
        penalty = none if self._penalty is None else self._penalty.add_gradient(torch.ones_like(self.factor))
        kl = self.weights.kl() if self._prior_term is None else self._prior_term.add_gradient(self.factor)
        return nll, score, none if kl is None else kl, penalty

    def _climb(self, update: Callable[[Mapping[str, Tensor]], object]) -> list[Tensor]:
        """Move the weights up the loss (AWP), with the noise of the update; returns them from before."""
        for mine, theirs in self._scratch_pairs:
            torch._foreach_copy_(mine, theirs)
        update(self._scratch)
        kept = [weight.detach().clone() for weight in self._perturbable]
        climb(
            self._perturbable,
            [cast(Tensor, weight.grad) for weight in self._perturbable],
            cast(float, self.defense.awp),
        )
        self.weights.refresh()
        return kept

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
        """Everything that a step changes, so that warming up can be undone."""
        states = self.optimizer.state.values()
        kept = [t for state in states for t in state.values() if isinstance(t, Tensor)]
        return [*self.loss.parameters(), *self.loss.buffers(), *kept]


def _fused_net(net: nn.Module, precision: torch.dtype, training: bool) -> FusedNet:
    try:
        return FusedNet(net, precision, training)
    except Exception as error:  # an unknown network may raise anything when it is copied
        raise UnsupportedError(f"{type(net).__name__} cannot be copied: {error}") from error


def _to_channels_last(model: nn.Module) -> None:
    # not by `model.to`, which fails on the weights of three-dimensional convolutions
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)


def _weights_of(
    loss: RobustLoss, precision: torch.dtype, compiled: bool
) -> tuple[FixedWeights | SampledWeights, PriorTerm | None]:
    """The weights of a step, and the KL or the prior if its gradient does not come with that of the weights."""
    model, scope, weight = loss.model, loss.objective.kl_scope, loss.objective.alpha / loss.examples
    parameters = list(model.parameters())
    if not isinstance(model, RandomNetwork):
        prior = loss.prior
        term = None if prior is None else PriorTerm(lambda: negative_log_prior(model, prior), parameters, weight)
        return FixedWeights(dict(model.named_parameters()), precision), term
    inside = set(names_in_scope(model, scope))
    try:
        return SampledWeights(model, precision, lambda name: weight if name in inside else 0.0, compiled), None
    except UnsupportedError:  # another prior
        term = PriorTerm(lambda: kl_divergence(model, scope), parameters, weight)
        return SampledWeights(model, precision, None, compiled), term
