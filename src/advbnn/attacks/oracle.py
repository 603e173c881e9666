"""A model as an attack sees it: answers and gradients, every one checked, counted and under known randomness."""

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.attacks.gradient import Answer, Slope, ask, input_gradient
from advbnn.attacks.losses import Objective, gaussian_nll, margin
from advbnn.attacks.threat import Threat
from advbnn.bayes.prediction import are_probabilities
from advbnn.errors import ArgumentError, ArgumentTypeError
from advbnn.randomness import seeded


class Oracle:
    """Answers the questions of one attack about one chunk of a batch.

    The network's own randomness follows torch's default generator, which the caller has seeded alike for every
    chunk. Randomness of examples (`start`, `rand`, `randn`) comes from another generator and is drawn for the whole
    batch, of which the chunk takes its rows. So neither depends on how the batch is split.

    Attributes:
        rows: the rows of the batch that this chunk holds.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        whole: tuple[Tensor, Tensor],
        rows: slice,
        *,
        seeds: tuple[int, int],
        is_random: Callable[[], bool],
        report: Callable[[float], None],
    ) -> None:
        self.rows = rows
        self._model, self._objective, self._report = model, objective, report
        self._whole_x, self._whole_y = whole
        example_seed, self._selection_seed = seeds
        self._generator = torch.Generator(self._whole_x.device).manual_seed(example_seed)
        self._is_random = is_random
        self._output_checked = False
        self._asked_of_all = 0
        self._asked = torch.zeros(rows.stop - rows.start, dtype=torch.int64, device=self._whole_x.device)
        self._peaks: list[Tensor] = []

    @property
    def random(self) -> bool:
        """Whether two passes of the model may differ; if not, one draw is as good as many."""
        return self._is_random()

    @property
    def queries(self) -> Tensor:
        """Forward passes spent on each example so far, every draw counted, [n]."""
        return self._asked + self._asked_of_all

    def gradient(self, x: Tensor, y: Tensor, objective: Objective, eot: int = 1, active: Tensor | None = None) -> Slope:
        """The objective and its gradient at `x`, averaged over `eot` fresh draws; see `input_gradient`.

        Args:
            x: one input for each example of the chunk, or for each of those in `active`.
            y: their labels.
            objective: what to differentiate, and which average of it.
            eot: the number of draws; a deterministic model is asked once.
            active: indices within the chunk of the examples asked about; all of them when None.
        """
        eot = self._draws(eot)
        slope = input_gradient(self._one_draw, x, y, objective, eot)
        self._count(eot if eot == 1 or objective.average == "loss" else 2 * eot, active)
        # the largest entry is NaN if any is, and 0 if all are: one small tensor to look at when the attack is over
        peak = slope.gradient.reshape(len(x), -1).abs().amax(1)
        if active is not None:
            peak = torch.full_like(self._asked, -1, dtype=peak.dtype).index_copy_(0, active, peak)
        self._peaks.append(peak)
        return slope

    def evaluate(
        self, x: Tensor, y: Tensor, objective: Objective, draws: int = 1, active: Tensor | None = None
    ) -> Tensor:
        """The objective at `x`, averaged over `draws` fresh draws, without a gradient, [n]; arguments as above."""
        return self._ask(x, y, objective, draws, active).values

    def select(
        self,
        x: Tensor,
        y: Tensor,
        objective: Objective,
        draws: int,
        *,
        known: Answer | Slope | None = None,
        active: Tensor | None = None,
    ) -> Answer:
        """As `evaluate`, on draws kept for comparing candidates: the same for all, and used for nothing else.

        A deterministic network whose answer at `x` is `known` is not asked again.
        """
        if known is not None and not self.random:
            return Answer(known.values, known.prediction)
        with seeded(self._selection_seed, x.device):
            return self._ask(x, y, objective, draws, active)

    def judge(
        self,
        x: Tensor,
        y: Tensor,
        draws: int,
        *,
        known: Answer | Slope | None = None,
        active: Tensor | None = None,
    ) -> Tensor:
        """How far the mean prediction over the selection draws is on the attacker's side, positive a success, [n].

        It is the margin of the mean probability; in regression the loss of the mean output.
        """
        objective = replace(self._objective, average="probability" if self._objective.classifies else "logits")
        return self.verdict(self.select(x, y, objective, draws, known=known, active=active).prediction, y)

    def succeeds(self, prediction: Tensor, y: Tensor, draws: int) -> Tensor:
        """Whether a classifier's mean prediction is wrong, and of a random one wrong beyond the luck of its draws, [n].

        The margin of a draw's probabilities lies in [-1, 1], so the standard error of the mean margin m of S draws
        is at most sqrt((1 - m^2) / S). m is above two of these if m > 2 / sqrt(S + 4).
        """
        if not self.random:
            return self.verdict(prediction, y) > 0
        return self.verdict(prediction.exp(), y) > 2 / math.sqrt(draws + 4)

    def verdict(self, prediction: Tensor, y: Tensor) -> Tensor:
        """The judgement that follows from a mean prediction, [n]."""
        judge = margin if self._objective.classifies else gaussian_nll
        return judge(prediction, y, self._objective.targeted)

    def start(self, threat: Threat) -> Tensor:
        """A random point of the allowed set around each example."""
        return threat.start(self._whole_x, self._generator)[self.rows]

    def rand(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), `shape` of them for each example."""
        return torch.rand(len(self._whole_x), *shape, **self._draw_options())[self.rows]

    def randn(self, *shape: int) -> Tensor:
        """Standard normal numbers, `shape` of them for each example."""
        return torch.randn(len(self._whole_x), *shape, **self._draw_options())[self.rows]

    def report(self, done: int, total: int) -> None:
        """Tell whoever follows the progress that `done` of `total` equal parts of the work are over."""
        self._report(done / total)

    def vanished(self) -> int:
        """The number of examples for which a gradient was asked, and every one was zero.

        Refuses gradients that were not finite. Only here, when the attack is over, are they looked at: a look at every
        step would keep the device waiting.
        """
        if not self._peaks:
            return 0
        peaks = torch.stack(self._peaks)
        bad = ~torch.isfinite(peaks)
        any_bad, vanished = torch.stack([bad.any().long(), (peaks.amax(0) == 0).sum()]).tolist()
        if any_bad:
            step = int(bad.any(1).nonzero()[0]) + 1
            raise ArgumentError(
                f"the gradient at step {step} is NaN or infinite for {int(bad[step - 1].sum())} of {bad.shape[1]} "
                "examples; look for a division by zero, log or sqrt of 0 in the model, or run it in float32"
            )
        return int(vanished)

    @torch.no_grad()
    def _ask(self, x: Tensor, y: Tensor, objective: Objective, draws: int, active: Tensor | None) -> Answer:
        draws = self._draws(draws)
        self._count(draws, active)
        return ask((self._one_draw(x) for _ in range(draws)), y, objective)

    def _draws(self, wanted: int) -> int:
        return wanted if wanted == 1 or self.random else 1

    def _count(self, passes: int, active: Tensor | None) -> None:
        if active is None:
            self._asked_of_all += passes
        else:
            self._asked.index_add_(0, active, torch.full_like(active, passes))

    def _draw_options(self) -> dict[str, Any]:
        dtype = torch.promote_types(self._whole_x.dtype, torch.float32)
        return {"generator": self._generator, "device": self._whole_x.device, "dtype": dtype}

    def _one_draw(self, x: Tensor) -> Tensor:
        outputs: Tensor = self._model(x)
        if not self._output_checked:
            check_outputs(outputs, x, self._whole_y, self._objective.classifies)
            self._output_checked = True
        return outputs


def check_outputs(outputs: Any, x: Tensor, y: Tensor, classifies: bool) -> None:
    """Refuse, with the remedy, what is not one tensor of logits for the labels `y`."""
    if not isinstance(outputs, Tensor):
        raise ArgumentTypeError(
            f"model must return one tensor, got a {type(outputs).__name__}; wrap it in a module that returns "
            "the logits alone"
        )
    if len(outputs) != len(x):
        raise ArgumentError(f"model returned {len(outputs)} rows for {len(x)} inputs; it must return one row an input")
    if classifies and outputs.ndim != 2:
        raise ArgumentError(f"model must return logits of shape [n, classes], got {tuple(outputs.shape)}")
    # brought over together, to wait for the device once
    sums_to_one = are_probabilities(outputs)
    highest = y.max() if classifies else torch.zeros_like(sums_to_one)
    has_nan, probabilities, label = torch.stack(
        [outputs.isnan().any().long(), sums_to_one.long(), highest.long()]
    ).tolist()
    if has_nan:
        raise ArgumentError("model returned NaN before any attack step; check its weights and its normalisation")
    if not classifies:
        return
    if label >= outputs.shape[1]:
        raise ArgumentError(
            f"y holds the label {label}, but the model has {outputs.shape[1]} classes, numbered from 0; "
            "check the labels, or the size of the model's last layer"
        )
    if probabilities:
        raise ArgumentError(
            "model returned probabilities (rows are non-negative and sum to 1), attacks need logits: remove the "
            "softmax, or return its logarithm"
        )


@torch.no_grad()
def is_random(model: nn.Module, x: Tensor) -> bool:
    """Whether a pass of the model draws random numbers, or two passes differ."""
    with _without_compiling(), seeded(0, x.device):
        before = _random_state(x.device)
        first = model(x)
        if any(not torch.equal(a, b) for a, b in zip(before, _random_state(x.device), strict=True)):
            return True
        return isinstance(first, Tensor) and not torch.equal(first, model(x))


def _without_compiling() -> AbstractContextManager[Any]:
    """Within the block nothing is compiled: what torch has compiled it would compile anew for a few inputs."""
    if "torch._dynamo" not in sys.modules:  # which is slow to import, and has compiled nothing yet
        return nullcontext()
    eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states
