"""The loss oracle of an attack: losses and gradients of a model, checked, counted and seeded."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from advbnn.attacks.checks import check_outputs
from advbnn.attacks.gradient import (
    LogitGradients,
    LossGradient,
    LossValue,
    Network,
    Probabilities,
    expected_gradient,
    logit_gradients,
    mean_loss,
)
from advbnn.attacks.losses import Objective, gaussian_nll, margin
from advbnn.attacks.target import Target
from advbnn.attacks.threat import Threat
from advbnn.bayes.outputs import check_same_outputs
from advbnn.bayes.protocol import EXACT_UP_TO, Member
from advbnn.errors import ArgumentError
from advbnn.randomness import pass_under, seeded

_ROWS = 64
"""Points in a pass if the chunk is smaller."""


class Oracle:
    """Losses and gradients for one attack on one chunk of a batch.

    The network's own randomness follows torch's default generator, which the caller seeds identically for every
    chunk. Randomness of examples (`start`, `rand`, `randn`) comes from a second generator. It is sampled for the
    whole batch, and the chunk takes its `rows`, so that neither depends on how the batch is split. `queries` counts the
    forward passes per example, [n], every weight sample counted.

    Where the posterior has a small finite support, a mean over several samples is exact: one pass of each network, with
    its probability.
    """

    def __init__(
        self,
        target: Target,
        objective: Objective,
        whole: tuple[Tensor, Tensor],
        rows: slice,
        *,
        seeds: Sequence[int],
        report: Callable[[float], None],
    ) -> None:
        self._target, self._objective, self.rows, self._report = target, objective, rows, report
        self._whole_x, self._whole_y = whole
        example_seed, self._selection_seed = seeds
        self._generator = torch.Generator(self._whole_x.device).manual_seed(example_seed)
        parts = list(target.model.modules())
        self._rows = max(_ROWS, *(getattr(part, "largest_batch", 0) for part in parts))
        self._rough_gradients = any(getattr(part, "rough_gradients", False) for part in parts)
        self._output_shape: torch.Size | None = None  # of one example
        self.queries = torch.zeros(rows.stop - rows.start, dtype=torch.int64, device=self._whole_x.device)
        self._largest_entries: list[Tensor] = []
        self._nan = torch.zeros((), dtype=torch.bool, device=self._whole_x.device)

    @property
    def random(self) -> bool:
        """Whether two passes of the model may differ; if not, one weight sample is enough."""
        return self._target.is_random

    def gradient(
        self, x: Tensor, y: Tensor, objective: Objective, eot: int = 1, active: Tensor | None = None
    ) -> LossGradient:
        """The objective and its gradient at `x`, averaged over `eot` fresh weight samples; see `input_gradient`.

        `active` holds the indices within the chunk of the examples queried; all when None. A deterministic model is
        sampled once.
        """
        networks, weights = self._passes(eot)
        loss = expected_gradient(networks, x, y, objective, weights)
        passes = len(networks)
        # a mean is counted as a pass of its own, also where its activations were kept for the gradient
        self._count(2 * passes if passes > 1 and objective.needs_mean else passes, active)
        self._watch(loss.gradient, active)
        # the mean logits of several networks say nothing about their mean probability
        return loss._replace(exact=weights is not None and objective.average != "logits")

    def exact(self, samples: int) -> bool:
        """Whether a mean over so many weight samples is no estimate: the network is deterministic, or all are there."""
        return not self.random or self._passes(samples)[1] is not None

    @torch.no_grad()
    def loss(
        self,
        x: Tensor,
        y: Tensor,
        objective: Objective,
        samples: int = 1,
        active: Tensor | None = None,
        points: int | Tensor = 1,
    ) -> LossValue:
        """The objective at `x`, averaged over fresh weight samples, without a gradient; arguments as above.

        `x` may hold several `points` of each example, the examples in the same order every time; as a tensor, how many
        of them count as queries of each example.
        """
        networks, weights = self._passes(samples)
        self._count(points * len(networks), active)
        return mean_loss((network(x) for network in networks), y, objective, weights)

    def members(self, count: int) -> tuple[list[float], list[Network]]:
        """Networks that do not change from pass to pass, and their probabilities, the most probable first.

        They are the support of the posterior if it is finite and small, else `count` of its samples: the model under
        that many seeds. A deterministic model is its only member.
        """
        support = self._target.support(max(count, EXACT_UP_TO)) if self.random else ()
        shares, networks = [member.weight for member in support], [self._member(member) for member in support]
        if not support:
            # from the current stream, so that a seeded attack stays reproducible
            seeds = torch.randint(2**62, (count,)).tolist() if self.random else [None]
            networks = [functools.partial(pass_under, seed, self._forward) for seed in seeds]
            shares = [1 / len(networks)] * len(networks)
        order = sorted(range(len(networks)), key=lambda number: -shares[number])
        return [shares[n] for n in order], [functools.partial(self._counted, networks[n]) for n in order]

    def logit_gradients(self, network: Network, x: Tensor, choose: Callable[[Tensor], Tensor]) -> LogitGradients:
        """See `gradient.logit_gradients`, for one of the `members`."""
        found = logit_gradients(network, x, choose)
        self._watch(found.gradients.abs().amax(0), None)
        return found

    def selection_loss(
        self,
        x: Tensor,
        y: Tensor,
        objective: Objective,
        samples: int,
        known: LossGradient | None = None,
        active: Tensor | None = None,
        points: int | Tensor = 1,
    ) -> LossValue:
        """As `loss`, on the selection samples: the same for all candidates, and used for nothing else.

        Where the mean is exact and the loss at `x` is `known`, nothing is queried again, unless gradients are computed
        in a lower precision.
        """
        if (
            known is not None
            and not self._rough_gradients
            and (not self.random or (known.exact and self.exact(samples)))
        ):
            return LossValue(known.values, known.prediction)
        with seeded(self._selection_seed, x.device):
            return self.loss(x, y, objective, samples, active, points)

    def selection_score(self, x: Tensor, y: Tensor, samples: int, known: LossGradient | None = None) -> Tensor:
        """The `score` of the mean prediction over the selection samples, [n]."""
        return self.score(self.selection_loss(x, y, self.selection_objective, samples, known=known).prediction, y)

    @functools.cached_property
    def selection_objective(self) -> Objective:
        """The objective of the mean prediction: of the mean probability, in regression of the mean output."""
        return replace(self._objective, average="probability" if self._objective.classifies else "logits")

    def score(self, prediction: Tensor, y: Tensor) -> Tensor:
        """How candidates are compared, [n]: the margin, positive on success; in regression the loss."""
        function = margin if self._objective.classifies else gaussian_nll
        return function(prediction, y, self._objective.targeted)

    def succeeds(self, prediction: Tensor, y: Tensor, samples: int, score: Tensor | None = None) -> Tensor:
        """Whether a mean prediction, with this `score`, is wrong, for a random network by two standard errors, [n].

        The margin of one sample's probabilities lies in [-1, 1], so that the standard error of the mean margin m of
        S samples is at most sqrt((1 - m^2) / S). m exceeds two of these if m > 2 / sqrt(S + 4). In regression there
        is no success. An exact mean has no standard error.
        """
        if not self._objective.classifies:
            return torch.zeros(len(y), dtype=torch.bool, device=y.device)
        if self.exact(samples):
            return (self.score(prediction, y) if score is None else score) > 0
        return self.score(prediction.exp(), y) > 2 / math.sqrt(samples + 4)

    def together(self, examples: int, eot: int) -> int:
        """How many points of so many examples one pass takes: 1 if each has its own `eot` weight samples.

        A pass of few examples takes hardly less time than one of the whole chunk, or of the batch that an accelerated
        model is prepared for.
        """
        return self._points_of(examples) if self.exact(eot) else 1

    def takes_pairs(self, examples: int) -> bool:
        """Whether a pass takes two points of so many examples, which then have the same random numbers."""
        return self._points_of(examples) > 1 and self._target.shares_draws

    def _points_of(self, examples: int) -> int:
        return max(1, max(len(self.queries), self._rows) // examples)

    @torch.no_grad()
    def votes(self, x: Tensor, y: Tensor, samples: int, active: Tensor | None = None, points: int = 1) -> Tensor:
        """The share of the weight samples whose label is what the attack aims at: not y, or y if targeted, [n].

        `points` as for `loss`.
        """
        networks, weights = self._passes(samples)
        self._count(points * len(networks), active)
        shares = [1 / len(networks)] * len(networks) if weights is None else weights
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for share, network in zip(shares, networks, strict=True):
            total += share * ((network(x).argmax(1) == y) == self._objective.targeted)
        return total

    def misclassified(self, x: Tensor, y: Tensor, samples: int, active: Tensor | None = None) -> Tensor:
        """Whether most votes of the selection samples are what the attack aims at, by two standard errors, [n].

        For the share v of S votes, with m = 2 v - 1, this is m > 2 / sqrt(S + 4), as in `succeeds`.
        """
        with seeded(self._selection_seed, x.device):
            share = self.votes(x, y, samples, active)
        return 2 * share - 1 > (0.0 if self.exact(samples) else 2 / math.sqrt(samples + 4))

    def start(self, threat: Threat) -> Tensor:
        """A random point of the allowed set around each example."""
        return threat.start(self._whole_x, self._generator)[self.rows]

    def rand(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), `shape` of them for each example."""
        return self._numbers(*shape).uniform_(generator=self._generator)[self.rows]

    def randn(self, *shape: int) -> Tensor:
        """Standard normal numbers, `shape` of them for each example."""
        return self._numbers(*shape).normal_(generator=self._generator)[self.rows]

    def _numbers(self, *shape: int) -> Tensor:
        dtype = torch.promote_types(self._whole_x.dtype, torch.float32)
        return torch.empty(len(self._whole_x), *shape, dtype=dtype, device=self._whole_x.device)

    def report(self, done: int, total: int) -> None:
        """Report that `done` of `total` equal parts of the work are finished."""
        begin, end = self.rows.start, self.rows.stop
        self._report((begin + (end - begin) * done / total) / len(self._whole_x))

    def zero_gradients(self) -> int:
        """The number of examples whose gradients were all zero; NaN outputs, NaN and infinite gradients are an error.

        Called once when the attack is over: a check at every step would synchronise with the device.
        """
        if self._nan.item():
            raise ArgumentError(
                "model returned NaN during the attack; look for a division by zero, log or sqrt of 0 in it"
            )
        if not self._largest_entries:
            return 0
        largest = torch.stack(self._largest_entries)
        bad = ~torch.isfinite(largest)
        any_bad, zero = torch.stack([bad.any().long(), (largest.amax(0) == 0).sum()]).tolist()
        if any_bad:
            step = int(bad.any(1).nonzero()[0]) + 1
            raise ArgumentError(
                f"model's gradient at step {step} is NaN or infinite for {int(bad[step - 1].sum())} of {bad.shape[1]} "
                "examples; look for a division by zero, log or sqrt of 0 in the model, or run it in float32"
            )
        return int(zero)

    def _passes(self, samples: int) -> tuple[list[Network], Probabilities]:
        """The passes of a mean over `samples` weight samples, and their probabilities if they are all there are."""
        if samples == 1 or not self.random:
            return [self._forward], None
        support = self._target.support(max(samples, EXACT_UP_TO))
        if support:
            return [self._member(member) for member in support], [member.weight for member in support]
        return [self._forward] * samples, None

    def _member(self, member: Member) -> Network:
        return functools.partial(self._checked, member.net)

    def _count(self, passes: int | Tensor, active: Tensor | None) -> None:
        if active is None:
            self.queries += passes
        else:
            each = passes if isinstance(passes, Tensor) else torch.full_like(active, passes)
            self.queries.index_add_(0, active, each)

    def _watch(self, gradient: Tensor, active: Tensor | None) -> None:
        # NaN if any entry is NaN, 0 if all are 0: one small tensor to look at when the attack is over
        largest = gradient.reshape(len(gradient), -1).abs().amax(1)
        if active is not None:
            largest = torch.full_like(self.queries, -1, dtype=largest.dtype).index_copy_(0, active, largest)
        self._largest_entries.append(largest)

    def _counted(self, network: Network, x: Tensor) -> Tensor:
        self._count(1, None)
        return network(x)

    def _forward(self, x: Tensor) -> Tensor:
        return self._checked(self._target.model, x)

    def _checked(self, network: nn.Module, x: Tensor) -> Tensor:
        outputs: Tensor = network(x)
        if self._output_shape is None:
            check_outputs(outputs, x, self._whole_y, self._objective.classifies)
            self._output_shape = outputs.shape[1:]
        check_same_outputs(self._output_shape, outputs.shape[1:])
        self._nan |= outputs.detach().isnan().any()
        return outputs
