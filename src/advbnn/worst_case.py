"""Whether a random classifier gets a point right: a sequential test that draws until it knows.

The classifier is the ensemble of all draws, argmax_c E p_c. A finite ensemble that is nearly undecided errs at random,
and the most harmful of many points is the one on which it was unlucky. So points that attacks have found are judged
anew, by draws that nothing was selected on, and by as many as it takes.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.modes import evaluating
from advbnn.rng import seeded
from advbnn.seeds import derive_seed

_LARGEST_STAKE = 0.9


class Verdict(NamedTuple):
    """What the test says of each of n points; those neither right nor wrong are undecided.

    Attributes:
        right: the ensemble gives the label, [n].
        wrong: it gives another class, [n].
        draws: how many it took, [n].
    """

    right: Tensor
    wrong: Tensor
    draws: Tensor


@torch.no_grad()
def decide(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    seed: int,
    most_draws: int,
    false_right: float = 0.01,
    false_wrong: float = 0.01,
    batch_size: int = 250,
) -> Verdict:
    """Whether argmax_c E p_c(x) is y, by a test that may stop after any draw (testing by betting).

    For every class j other than y a gambler bets that d_j = p_y - p_j, a number in [-1, 1], is positive in the mean.
    His wealth is prod_t (1 + b_t d_j(t)), where each stake b_t is chosen before the draw. If y does not beat j, his
    wealth is at most 1 in expectation, and the chance that it ever comes to 1 / false_right is at most false_right
    (Ville's inequality). The answer is right once the poorest of them has come that far. Other gamblers bet on d_j
    being negative; the answer is wrong once their mean wealth has come to 1 / false_wrong. The stakes,
    sum d_j / (1 + sum d_j^2) over the draws seen before, are nearly those that make the wealth grow fastest.

    Args:
        model: returns logits.
        x: points.
        y: their labels.
        seed: decides the draws, the same ones for every point. Nothing must have been found or chosen by them.
        most_draws: points that are open after so many draws stay undecided.
        false_right: the largest chance that a wrong answer is called right.
        false_wrong: the largest chance that a right answer is called wrong.
        batch_size: points asked about at a time.
    """
    right, wrong = (torch.zeros(len(x), dtype=torch.bool, device=x.device) for _ in range(2))
    draws = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    known: Tensor | None = None  # sum and sum of squares of d, log wealth of either side: [n, 4, classes]
    for draw in range(most_draws):
        rows = (~(right | wrong)).nonzero().squeeze(1)
        if len(rows) == 0:
            break
        probs = _one_draw(model, x, rows.split(batch_size), derive_seed(seed, "decide", draw))
        if known is None:
            known = probs.new_zeros(len(x), 4, probs.shape[1])
        total, squares, for_right, for_wrong = known[rows].unbind(1)
        d = probs.gather(1, y[rows, None]) - probs
        stake = (total / (1 + squares)).clamp(-_LARGEST_STAKE, _LARGEST_STAKE)
        for_right = for_right + torch.log1p(stake.clamp_min(0) * d)
        for_wrong = for_wrong + torch.log1p(stake.clamp_max(0) * d)
        known[rows] = torch.stack([total + d, squares + d**2, for_right, for_wrong], 1)
        own = functional.one_hot(y[rows], d.shape[1]).bool()
        poorest = for_right.masked_fill(own, torch.inf).amin(1)
        mean_wealth = for_wrong.masked_fill(own, -torch.inf).logsumexp(1) - math.log(d.shape[1] - 1)
        right[rows] = poorest >= -math.log(false_right)
        wrong[rows] = ~right[rows] & (mean_wealth >= -math.log(false_wrong))
        draws[rows] = draw + 1
    return Verdict(right, wrong, draws)


def _one_draw(model: nn.Module, x: Tensor, parts: Sequence[Tensor], seed: int) -> Tensor:
    """The probabilities that one draw of the network gives to the rows of `x` in all parts."""
    probs = []
    with evaluating(model):
        for rows in parts:
            with seeded(seed, x.device):
                probs.append(model(x[rows]).softmax(1).double())
    return torch.cat(probs)
