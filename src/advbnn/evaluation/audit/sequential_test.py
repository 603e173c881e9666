"""Whether a random classifier gets a point right: a sequential test that draws until it knows.

The classifier is the ensemble of all draws, argmax_c E p_c. A finite ensemble that is nearly undecided errs at random,
and the most harmful of many points is the one on which it was unlucky. So points that attacks have found are judged
anew, by draws that nothing was selected on, and by as many as it takes.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from advbnn.modules import evaluating
from advbnn.randomness import derive_seed, seeded

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
def sequential_test(
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
        probs = _one_draw(model, x, rows, batch_size, derive_seed(seed, "sequential_test", draw))
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


def _one_draw(model: nn.Module, x: Tensor, rows: Tensor, batch_size: int, seed: int) -> Tensor:
    """The probabilities that one draw of the network gives to the rows of `x`."""
    probs = []
    with evaluating(model):
        for part in rows.split(batch_size):
            # with every decision there are fewer rows, and for each number of them a GPU would record a new graph
            asked = filled_up(part, batch_size) if x.is_cuda else part
            with seeded(seed, x.device):
                probs.append(model(x[asked])[: len(part)].softmax(1).double())
    return torch.cat(probs)


def filled_up(rows: Tensor, batch_size: int) -> Tensor:
    """The rows, and the last of them again until they are a batch, a quarter or a sixteenth of one."""
    size = next(size for size in (batch_size // 16, batch_size // 4, batch_size) if size >= len(rows))
    return torch.cat([rows, rows[-1:].expand(size - len(rows))])


class RobustSet:
    """Which images of a batch still stand after the points that they had to face.

    An image that falls is not asked about again. One about which the test is inconclusive is not robust any more; it goes
    on to face the points that look worst, so that it is called fallen where one of them surely brings it down. With
    `error` as the chance of either mistake, an image that one of its points brings down is called robust with that
    chance at most, and one that none brings down is called fallen with that chance at most.

    Attributes:
        robust: every point so far is surely classified correctly, [n].
        undecided: a point could not be decided, and none has surely brought it down; such an image is not robust, [n].
        draws: the draws that all decisions about an image have taken, [n].

    Args:
        model: returns logits.
        y: the labels of the images.
        random: whether the model is; if not, its answer is believed at once.
        points: how many points each image has to face in all.
        error: see above.
        seed: decides the draws.
        most_draws: see `sequential_test`.
        batch_size: see `sequential_test`.
    """

    def __init__(
        self,
        model: nn.Module,
        y: Tensor,
        *,
        random: bool,
        points: int,
        error: float,
        seed: int,
        most_draws: int,
        batch_size: int,
    ) -> None:
        self._y, self._random, self._seed, self._asked = y, random, seed, 0
        self._decide = functools.partial(
            sequential_test,
            model,
            most_draws=most_draws,
            false_right=error,  # of a point that brings its image down one test has to be mistaken
            false_wrong=error / points,  # an image that stands is lost by a mistake in any of its tests
            batch_size=batch_size,
        )
        self.robust = torch.ones_like(y, dtype=torch.bool)
        self.undecided, self.draws = torch.zeros_like(self.robust), torch.zeros_like(y)

    def test(self, points: Tensor, leads: Tensor, rows: Tensor | None = None) -> None:
        """Decide about points of those images that have not fallen.

        Args:
            points: [points, images, ...].
            leads: by how much the label leads at each, as a small ensemble saw it, [points, images].
            rows: which images; all of them when None.
        """
        rows = torch.arange(len(self._y), device=self._y.device) if rows is None else rows
        worst = leads.argmin(0, keepdim=True)
        number = torch.arange(len(points), device=rows.device)[:, None]
        # most images that fall do so at the point that looked worst, and the others need not be asked about
        self._ask(points, leads, rows, (number == worst) & (self.robust | self.undecided)[rows])
        self._ask(points, leads, rows, (number != worst) & self.robust[rows])

    def _ask(self, points: Tensor, leads: Tensor, rows: Tensor, chosen: Tensor) -> None:
        point, image = chosen.nonzero(as_tuple=True)
        if len(image):
            self._judge(points[point, image], leads[point, image], rows[image])

    def _judge(self, x: Tensor, leads: Tensor, rows: Tensor) -> None:
        if not self._random:
            self.robust[rows[leads <= 0]] = False
            return
        self._asked += 1
        # other draws each time, which owe nothing to what was decided before
        seed = derive_seed(self._seed, "worst case", self._asked)
        verdict = self._decide(x, self._y[rows], seed=seed)
        self.robust[rows[~verdict.right]] = False
        self.undecided[rows[~(verdict.right | verdict.wrong)]] = True
        self.undecided[rows[verdict.wrong]] = False
        self.draws.index_add_(0, rows, verdict.draws)
