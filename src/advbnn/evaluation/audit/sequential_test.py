"""Whether the infinite ensemble, argmax_c E p_c, is correct at a point: a sequential test on fresh weight samples.

A finite ensemble that is close to a tie errs at random. Whether the infinite one is correct can be decided with a given
certainty, on as many weight samples as the decision needs; close to a tie it stays inconclusive.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.modules import evaluating
from advbnn.randomness import derive_seed, pass_under

BOUNDED = ("probability", "vote")
"""The rules whose infinite ensemble can be tested: a mean of logarithms has no bound to bet on."""

_LARGEST_STAKE = 0.9

_GIVEN = 50
"""Weight samples without a pass that are looked at together."""


class Verdict(NamedTuple):
    """The decision at each of n points, and the weight samples it took; neither correct nor wrong is inconclusive."""

    correct: Tensor
    wrong: Tensor
    weight_samples: Tensor


@torch.no_grad()
def sequential_test(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    seed: int,
    max_weight_samples: int,
    rule: str = "probability",
    false_correct: float = 0.01,
    false_wrong: float = 0.01,
    batch_size: int = 250,
    given: Tensor | None = None,
) -> Verdict:
    """Whether argmax_c E p_c(x) is y, by a test that may stop after any weight sample (testing by betting).

    With the rule `"vote"`, p_c is the vote of a weight sample: 1 for its label, else 0.
    For every class j other than y, wealth is bet on d_j = p_y - p_j, a number in [-1, 1], having a positive mean:
    prod_t (1 + b_t d_j(t)), where the stake b_t is chosen before weight sample t. If y does not beat j, the wealth is a
    supermartingale, and the probability that it ever reaches 1 / false_correct is at most false_correct (Ville's
    inequality). The point is correct once the smallest wealth over j has reached that. A second wealth is bet on d_j
    having a negative mean; the point is wrong once its mean over j has reached 1 / false_wrong. The stakes,
    sum d_j / (1 + sum d_j^2) over the past weight samples, nearly maximise the growth of the wealth.

    Points without a decision after `max_weight_samples` are inconclusive. `seed` decides the weight samples, the same
    for every point; nothing may have been selected on them. Log probabilities of such samples that are known already,
    `given` as [samples, n, classes], come first and need no pass.
    """
    correct, wrong = (torch.zeros(len(x), dtype=torch.bool, device=x.device) for _ in range(2))
    weight_samples = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    known: Tensor | None = None  # sum and sum of squares of d, log wealth of either bet: [n, 4, classes]
    log_correct, log_wrong = -math.log(false_correct), -math.log(false_wrong)
    # the first stake is 0, so that no point can be decided by fewer
    number, count = 0, 1 + math.ceil(min(log_correct, log_wrong) / math.log1p(_LARGEST_STAKE))
    while number < max_weight_samples:
        rows = (~(correct | wrong)).nonzero().squeeze(1)
        if len(rows) == 0:
            break
        if given is not None and number < len(given):
            count = min(_GIVEN, len(given) - number)
        block = range(number, min(number + count, max_weight_samples))
        if given is not None and number < len(given):
            probs = given[block.start : block.stop, rows].double().exp()
        else:
            seeds = [derive_seed(seed, "decide", n) for n in block]
            probs = _probabilities(model, x[rows], batch_size, seeds)
        if rule == "vote":
            probs = functional.one_hot(probs.argmax(-1), probs.shape[-1]).to(probs)
        if known is None:
            known = probs.new_zeros(len(x), 4, probs.shape[-1])
        before = known[rows].unbind(1)
        d = probs.gather(-1, y[rows].expand(len(block), -1)[..., None]) - probs
        total, squares = ((start + values.cumsum(0)) for start, values in zip(before, (d, d**2), strict=False))
        # chosen before each weight sample
        past, past_squares = (torch.cat([s[None], v[:-1]]) for s, v in zip(before, (total, squares), strict=False))
        stake = (past / (1 + past_squares)).clamp(-_LARGEST_STAKE, _LARGEST_STAKE)
        for_correct = before[2] + torch.log1p(stake.clamp_min(0) * d).cumsum(0)
        for_wrong = before[3] + torch.log1p(stake.clamp_max(0) * d).cumsum(0)
        known[rows] = torch.stack([total[-1], squares[-1], for_correct[-1], for_wrong[-1]], 1)
        own = functional.one_hot(y[rows], d.shape[-1]).bool()
        smallest = for_correct.masked_fill(own, torch.inf).amin(-1)
        mean_wealth = for_wrong.masked_fill(own, -torch.inf).logsumexp(-1) - math.log(d.shape[-1] - 1)
        says_correct = smallest >= log_correct
        decided = says_correct | (mean_wealth >= log_wrong)
        # the first weight sample that decides, or else the last one
        last = torch.where(decided.any(0), decided.int().argmax(0), len(block) - 1)[None]
        correct[rows] = says_correct.gather(0, last)[0]
        wrong[rows] = (decided & ~says_correct).gather(0, last)[0]
        number = block.stop
        weight_samples[rows] = block.start + last[0] + 1
        count = _block(number, x.device)
    return Verdict(correct, wrong, weight_samples)


def _block(number: int, device: torch.device) -> int:
    """How many weight samples are passed, after `number` of them, before the host looks which points are open.

    It waits for a GPU to see that. Passes of points that are decided meanwhile are wasted, an eighth at most.
    """
    return 1 + number // 8 if device.type == "cuda" else 1


def _probabilities(model: nn.Module, x: Tensor, batch_size: int, seeds: Sequence[int]) -> Tensor:
    """The probabilities at n points of the weight samples of these seeds, [seeds, n, classes]."""
    parts = x.split(batch_size)
    with evaluating(model):
        logits = [torch.cat([pass_under(seed, model, part) for part in parts]) for seed in seeds]
    return torch.stack(logits).softmax(-1).double()


class CertainSet:
    """What is certain about the infinite ensemble on the images of a batch, tested at one point per image and radius.

    At the worst points of growing radii an image is certain while every test so far calls it correct, and wrong for
    good once one calls it wrong, since the point lies in all larger balls. Either is an error with probability at most
    `error` per image. Points must have been chosen on other weight samples.

    Attributes:
        certain, wrong: [n]; neither is inconclusive.
        weight_samples: the number that all tests of an image have taken, [n].

    Args:
        points: how many points of each image are tested at most.
        how: further arguments of `sequential_test`.
    """

    def __init__(self, model: nn.Module, y: Tensor, *, points: int, error: float, seed: int, **how: Any) -> None:
        self._y, self._seed, self._tests = y, seed, 0
        self._sequential_test = functools.partial(
            sequential_test,
            model,
            false_correct=error,  # a wrong image is called certain only if the test of the point that breaks it errs
            false_wrong=error / points,  # an image is called wrong by mistake if any of its tests errs
            **how,
        )
        self.certain = torch.ones_like(y, dtype=torch.bool)
        self.wrong, self.weight_samples = torch.zeros_like(self.certain), torch.zeros_like(y)

    @property
    def inconclusive(self) -> Tensor:
        """Neither certain nor wrong, [n]."""
        return ~(self.certain | self.wrong)

    def test(self, points: Tensor, new: Tensor, given: Tensor | None = None) -> None:
        """Test the points, [n, ...], of the images that are not wrong and have a `new` one, bool [n].

        `given` are the log probabilities of weight samples at the new points, as for `sequential_test`. They may be the
        same at every radius: the bound on the errors of an image is a sum over its tests, whether independent or not.
        """
        rows = (new & ~self.wrong).nonzero().squeeze(1)
        self._tests += 1
        seed = derive_seed(self._seed, "certain", self._tests)
        given = None if given is None else given[:, ~self.wrong[new]]
        verdict = self._sequential_test(x=points[rows], y=self._y[rows], seed=seed, given=given)
        self.certain[rows[~verdict.correct]] = False
        self.wrong[rows[verdict.wrong]] = True
        self.weight_samples.index_add_(0, rows, verdict.weight_samples)
