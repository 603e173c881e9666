"""What black-box attacks share: a budget of answers, and a search that an example leaves at its first success."""

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from advbnn.attacks.base import Attack, Best, check_count
from advbnn.attacks.oracle import Oracle
from advbnn.randomness import seeded


@dataclass(frozen=True, kw_only=True)
class BlackBox(Attack):
    """An attack that asks what the network answers, within the box, and never for a gradient.

    A query is one answer about one point: the objective there, averaged over `eot` draws of a random network, or
    the judgement whether the point succeeds, on `selection_samples` draws of its own. Both count as 1, however many
    draws they rest on; `Outcome.queries` counts the draws. A deterministic network gives either in one pass.

    An example stops at the first point that is judged a success, of a random network one that is no luck of the
    draws: two standard errors beyond the boundary, as a point just beyond it fails on other draws as often as not.
    Without a success the point judged best is returned. In regression nothing is a success.

    Args:
        queries: the most queries about one example, the one about the unperturbed example included.
    """

    loss: str = "margin"
    queries: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("queries", self.queries)

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        search = Search(self, oracle, x, y)
        self._search(search)
        return search.best.x

    @abstractmethod
    def _search(self, search: "Search") -> None:
        """Ask and offer points until nobody can afford more."""


class Search:
    """The questions of a black-box attack about one chunk, counted, and the best points found.

    Attributes:
        oracle: randomness for proposals; questions go through the search.
        x: the unperturbed examples.
        best: the point of each example that was judged best so far, and its judgement.
        active: indices of the examples that still search; questions are about these alone.
    """

    def __init__(self, attack: BlackBox, oracle: Oracle, x: Tensor, y: Tensor) -> None:
        self.oracle, self.x, self.best = oracle, x, Best(x)
        self.active = torch.arange(len(x), device=x.device)
        self._y, self._budget, self._eot, self._draws = y, attack.queries, attack.eot, attack.selection_samples
        self._objective = attack.objective
        average = "probability" if self._objective.classifies else "logits"
        self._judged_by = replace(self._objective, average=average)
        self._left = torch.full((len(x),), attack.queries, device=x.device)
        self._fallen = torch.zeros_like(self._left, dtype=torch.bool)
        self.offer(x)

    def affords(self, cost: int) -> bool:
        """Whether any example still searches and can pay for `cost` queries; the others leave `active`."""
        self.active = ((self._left >= cost) & ~self._fallen).nonzero().squeeze(1)
        if not len(self.active):
            return False
        self.oracle.report(self._budget - int(self._left[self.active].max()), self._budget)
        return True

    def offer(self, points: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Judge a point of each active example and keep it if it is the best so far.

        Args:
            points: one for each active example, or for each of those in `chosen`.
            chosen: mask over the active examples; all of them when None.

        Returns:
            The objective at the points on the draws that judged them.
        """
        rows = self.active if chosen is None else self.active[chosen]
        answer = self.oracle.select(points, self._y[rows], self._judged_by, self._draws, active=rows)
        self.best.offer(points, self.oracle.verdict(answer.prediction, self._y[rows]), rows)
        self._fallen[rows] |= self._succeeds(answer.prediction, self._y[rows])
        self._left[rows] -= 1
        return answer.values

    def compare(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """The objective at two points of each active example, at the cost of two queries.

        Both are asked on the same draws: their difference is due to the points, not to the luck of a draw.
        """
        if not self.oracle.random:
            return self._ask(first), self._ask(second)
        # drawn from the current stream, so that a seeded attack stays repeatable
        seed = int(torch.randint(2**62, ()).item())
        with seeded(seed, first.device):
            value = self._ask(first)
        with seeded(seed, first.device):
            return value, self._ask(second)

    def _succeeds(self, prediction: Tensor, y: Tensor) -> Tensor:
        """Whether a mean prediction is wrong beyond luck; in regression nothing ever is."""
        if not self._objective.classifies:
            return torch.zeros_like(self._fallen[: len(y)])
        return self.oracle.succeeds(prediction, y, self._draws)

    def _ask(self, points: Tensor) -> Tensor:
        self._left[self.active] -= 1
        return self.oracle.evaluate(points, self._y[self.active], self._objective, self._eot, self.active)
