"""What black-box attacks share: a query budget, and a search that each example leaves at its first success."""

import itertools
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from advbnn.attacks.base import Attack, BestPoints
from advbnn.attacks.oracle import Oracle
from advbnn.errors import positive_whole
from advbnn.randomness import seeded

_REPORT_EVERY = 16
"""Queries between two reports of the progress of a search."""


@dataclass(frozen=True, kw_only=True)
class BlackBox(Attack):
    """An attack that queries the loss of points in the box and never uses a gradient.

    A query evaluates one point: either the objective, averaged over `eot` samples of a random network, or whether the
    point succeeds, on `selection_samples` other samples. Both count as one query, however many samples they use;
    `AttackResult.queries` counts samples. A deterministic network needs one pass for either.

    An example stops at its first success, for a random network by two standard errors: a point at the boundary fails
    on other samples half of the time. Without a success the best point is returned. In regression there is no
    success.

    Args:
        queries: the query budget per example, the query of the unperturbed example included.
    """

    loss: str = "margin"
    queries: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_whole("queries", self.queries, most=1_000_000_000)

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        search = Search(self, oracle, x, y)
        self._search(search)
        return search.best.x

    @abstractmethod
    def _search(self, search: "Search") -> None:
        """Query and offer points until no example can afford more."""


class Search:
    """The queries of a black-box attack on one chunk, counted, and the best points found.

    `active` holds the indices of the examples that still search; only these are queried.
    """

    def __init__(self, attack: BlackBox, oracle: Oracle, x: Tensor, y: Tensor) -> None:
        self.oracle, self.x, self.best = oracle, x, BestPoints(x)
        self.active = torch.arange(len(x), device=x.device)
        self._attack, self._y = attack, y
        self._left = torch.full((len(x),), attack.queries, device=x.device)
        self._succeeded = torch.zeros_like(self._left, dtype=torch.bool)
        self._turns = itertools.count()
        self.offer(x)

    def affords(self, cost: int) -> bool:
        """Whether any example still searches and can afford `cost` queries; the others leave `active`."""
        self.active = ((self._left >= cost) & ~self._succeeded).nonzero().squeeze(1)
        # to report, the host waits for the device
        if len(self.active) and next(self._turns) % max(1, _REPORT_EVERY // cost) == 0:
            self.oracle.report(self._attack.queries - int(self._left[self.active].max()), self._attack.queries)
        return len(self.active) > 0

    def offer(self, points: Tensor, chosen: Tensor | None = None) -> Tensor:
        """The objective at one point of each active example, or of those `chosen` by index; keeps the best points.

        It is evaluated on the selection samples.
        """
        rows = self.active if chosen is None else self.active[chosen]
        y, samples = self._y[rows], self._attack.selection_samples
        found = self.oracle.selection_loss(points, y, self.oracle.selection_objective, samples, active=rows)
        self.best.offer(points, self.oracle.score(found.prediction, y), rows)
        self._succeeded[rows] |= self.oracle.succeeds(found.prediction, y, samples)
        self._left[rows] -= 1
        return found.values

    def compare(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """The objective at two points of each active example, on the same weight samples; costs two queries.

        Where the mean is exact there may be several pairs, [pairs * active, ...], at two queries each.
        """
        if self.oracle.exact(self._attack.eot):
            return self._loss(first), self._loss(second)
        # from the current stream, so that a seeded attack stays reproducible
        seed = int(torch.randint(2**62, ()).item())
        with seeded(seed, first.device):
            value = self._loss(first)
        with seeded(seed, first.device):
            return value, self._loss(second)

    def _loss(self, points: Tensor) -> Tensor:
        count = len(points) // len(self.active)
        self._left[self.active] -= count
        objective, eot, y = self._attack.objective, self._attack.eot, self._y[self.active]
        y = y.repeat(count, *[1] * (y.ndim - 1))
        return self.oracle.loss(points, y, objective, eot, self.active, count).values
