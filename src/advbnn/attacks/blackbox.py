"""What black-box attacks share: a query budget, and a search that each example leaves at its first success."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from advbnn.attacks.base import Attack, BestPoints
from advbnn.attacks.oracle import Oracle
from advbnn.errors import positive_whole
from advbnn.randomness import fresh_seed, seeded


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
        return search.result

    @abstractmethod
    def _search(self, search: "Search") -> None:
        """Query and offer points until no example can afford more."""


class Search:
    """The queries of a black-box attack on one chunk, counted, and the best points found.

    `active` holds the indices of the examples that still search; only these are queried. On a GPU the host waits to see
    which have succeeded, so it looks rarely; until then those are queried in vain, which neither counts nor changes
    their best points.

    Attributes:
        kept: where the active examples were among those before the last call of `affords`; None if all of them stay.
    """

    kept: Tensor | None = None

    def __init__(self, attack: BlackBox, oracle: Oracle, x: Tensor, y: Tensor) -> None:
        self.oracle, self.x = oracle, x
        self.active = torch.arange(len(x), device=x.device)
        self._attack, self._found = attack, x
        exact = oracle.exact(attack.eot) and oracle.exact(attack.selection_samples)
        self._wait = _wait(x.device) if exact else 1
        self._spent, self._looked = 0, -self._wait  # queries that every active example has made, now and at the look
        # of the active examples:
        self._y, self._best = y, BestPoints(x)
        self._extra = torch.zeros_like(self.active)  # queries that only some have made
        self._counts = torch.ones_like(self.active)  # 0 after a success
        self.offer(x)

    @property
    def result(self) -> Tensor:
        """The best point of every example."""
        return self._found.index_copy(0, self.active, self._best.x)

    def affords(self, cost: int) -> bool:
        """Whether any example still searches and can afford `cost` queries; the others leave `active`."""
        room, self.kept = self._attack.queries - self._spent - cost, None
        if room >= 0 and self._spent - self._looked >= self._wait:
            self._looked = self._spent
            kept = ((self._counts > 0) & (self._extra <= room)).nonzero().squeeze(1)
            if len(kept) < len(self.active):
                self._found, self.kept = self.result, kept
                self._best.keep(kept)
                self.active, self._y, self._extra = self.active[kept], self._y[kept], self._extra[kept]
                self._counts = torch.ones_like(kept)
        if room < 0 or not len(self.active):
            return False
        self.oracle.report(self._spent, self._attack.queries)
        return True

    def offer(self, points: Tensor, chosen: Tensor | None = None) -> Tensor:
        """The objective at one point of each active example, or of those `chosen` by index; keeps the best points.

        It is evaluated on the selection samples.
        """
        rows, y, counts, samples = self.active, self._y, self._counts, self._attack.selection_samples
        if chosen is None:
            self._spent += 1
        else:
            rows, y, counts = rows[chosen], y[chosen], counts[chosen]
            self._extra[chosen] += 1
        objective = self.oracle.selection_objective
        loss = self.oracle.selection_loss(points, y, objective, samples, active=rows, points=counts)
        score = loss.values if objective.loss == "margin" else self.oracle.score(loss.prediction, y)
        self._best.offer(points, score.masked_fill(counts == 0, -torch.inf), chosen)
        counts = counts.masked_fill(self.oracle.succeeds(loss.prediction, y, samples, score), 0)
        self._counts = counts if chosen is None else self._counts.index_copy(0, chosen, counts)
        return loss.values

    def compare(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """The objective at two points of each active example, on the same weight samples; costs two queries.

        Where the mean is exact there may be several pairs, [pairs * active, ...], at two queries each.
        """
        if self.oracle.exact(self._attack.eot):
            count = len(first) // len(self.active)
            y, counts = self._y.repeat(count, *[1] * (self._y.ndim - 1)), self._counts * count
            self._spent += 2 * count
            return self._loss(first, y, counts), self._loss(second, y, counts)
        seed = fresh_seed()
        self._spent += 2
        if self.oracle.takes_pairs(len(first)):
            y = self._y.repeat(2, *[1] * (self._y.ndim - 1))
            with seeded(seed, first.device):
                ahead, behind = self._loss(torch.cat([first, second]), y, 2 * self._counts).chunk(2)
            return ahead, behind
        with seeded(seed, first.device):
            value = self._loss(first, self._y, self._counts)
        with seeded(seed, first.device):
            return value, self._loss(second, self._y, self._counts)

    def _loss(self, points: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        attack = self._attack
        return self.oracle.loss(points, y, attack.objective, attack.eot, self.active, counts).values


def _wait(device: torch.device) -> int:
    """Queries after which the host looks again which examples have succeeded."""
    return 8 if device.type == "cuda" else 1
