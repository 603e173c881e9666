"""The attacks of an audit: which are tried, how hard, and on which images."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from advbnn.attacks import APGD, NES, PGD, Attack, Square, Transfer, paper_pgd
from advbnn.attacks.oracle import Oracle
from advbnn.attacks.threat import Threat
from advbnn.bayes.protocol import posterior_mean
from advbnn.evaluation.accuracy import Perturbation
from advbnn.evaluation.attackable import Attackable

NOISE, PAPER, WHITE_BOX, TRANSFER, BLACK_BOX, GIVEN = "noise", "paper", "white box", "transfer", "black box", "given"
ALL, SURVIVORS = "all", "survivors"


@dataclass(frozen=True, kw_only=True)
class Level:
    """How much an audit tries.

    Args:
        draws: K of averaged PGD; every K is tried with every number of steps.
        steps: its steps.
        restarts: random starts of one more PGD, with the fewest draws and steps.
        apgd_steps: steps of APGD.
        apgd_draws: draws that its gradients are averaged over.
        targets: wrong classes that targeted APGD tries; all of them where there are fewer.
        selection_samples: draws by which attacks compare the points that they have found.
        query_draws: draws that an answer to a black-box attack is averaged over.
        square_queries: budget of Square, for a network that is not random `query_draws` times as much.
        nes_queries: that of NES.
        nes_directions: directions in a step of NES.
        most_draws: draws after which the test of the worst case leaves a point undecided.
    """

    draws: tuple[int, ...]
    steps: tuple[int, ...]
    restarts: int
    apgd_steps: int
    apgd_draws: int
    targets: int
    selection_samples: int
    query_draws: int
    square_queries: int
    nes_queries: int
    nes_directions: int
    most_draws: int


LEVELS = {
    "quick": Level(
        draws=(1, 8),
        steps=(10, 30),
        restarts=3,
        apgd_steps=20,
        apgd_draws=4,
        targets=2,
        selection_samples=8,
        query_draws=4,
        square_queries=120,
        nes_queries=250,
        nes_directions=10,
        most_draws=1000,
    ),
    "standard": Level(
        draws=(1, 5, 20),
        steps=(20, 100),
        restarts=5,
        apgd_steps=100,
        apgd_draws=20,
        targets=9,
        selection_samples=20,
        query_draws=10,
        square_queries=500,
        nes_queries=500,
        nes_directions=25,
        most_draws=5000,
    ),
    "thorough": Level(
        draws=(1, 5, 20, 50),
        steps=(20, 100, 500),
        restarts=10,
        apgd_steps=200,
        apgd_draws=40,
        targets=9,
        selection_samples=40,
        query_draws=20,
        square_queries=1000,
        nes_queries=1000,
        nes_directions=25,
        most_draws=20_000,
    ),
}


@dataclass(frozen=True)
class SuiteEntry:
    """One attack of a suite.

    Args:
        name: what it is called in tables.
        role: `"noise"`; `"paper"`, the authors' attack; `"white box"`, by gradients of the network itself;
            `"transfer"`; `"black box"`; or `"given"` by the user.
        attack: the attack.
        on: the images that it is tried on: `"all"`, or those that are `"survivors"` of all entries before it.
    """

    name: str
    role: str
    attack: Perturbation
    on: str = ALL


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """A random point of the allowed set: what every attack has to beat."""

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        return oracle.start(self.threat)


def attack_suite(
    level: Level,
    threat: Threat,
    model: Attackable,
    *,
    classes: int,
    pixels: int,
    random: bool,
    transfer_from: Mapping[str, nn.Module],
    given: Mapping[str, Perturbation],
) -> tuple[SuiteEntry, ...]:
    """The attacks of a level at one radius.

    All are tried on all images, since their accuracies are compared, but for targeted APGD and NES. These cost most,
    come last, and are tried on survivors. Nothing is averaged over draws where the network is not random.
    """
    judging: dict[str, Any] = {"selection_samples": level.selection_samples}
    averaged = {"steps": level.apgd_steps, "eot": level.apgd_draws, **judging}
    asking = {"eot": level.query_draws, **judging}
    worth = 1 if random else level.query_draws
    authors = []
    if threat.norm == "linf":
        single = replace(paper_pgd(threat.eps), threat=threat)  # whose box need not be [0, 1]
        authors.append(SuiteEntry("authors' PGD-20", PAPER, single))
        if random:
            twin = replace(single, eot=level.draws[-1])
            authors.append(SuiteEntry(f"authors' PGD-20, {level.draws[-1]} draws", WHITE_BOX, twin))
    grid = [
        PGD(threat, steps=steps, eot=draws, **judging)
        for steps in level.steps
        for draws in (level.draws if random else (1,))
    ]
    restarted = replace(grid[0], restarts=level.restarts)
    # a source may be random where the network is not; one that is not random is asked once all the same
    surrogate = replace(grid[-1], eot=level.draws[-1])
    scale_free: dict[str, Any] = {"loss": "margin"}
    if classes >= 4:  # the targeted DLR loss compares four of them
        scale_free = {"loss": "dlr", "targets": min(level.targets, classes - 1)}
    sources = dict(transfer_from)
    mean = posterior_mean(model.model)
    if mean is not None:
        sources = {"its mean network": Attackable(mean, model.returns_probabilities), **sources}
    return (
        SuiteEntry("noise", NOISE, Noise(threat)),
        *authors,
        *(SuiteEntry(_title(pgd, random), WHITE_BOX, pgd) for pgd in grid),
        SuiteEntry(f"{_title(restarted, random)}, {level.restarts} starts", WHITE_BOX, restarted),
        SuiteEntry("APGD-CE", WHITE_BOX, APGD(threat, **averaged)),
        *(SuiteEntry(f"from {name}", TRANSFER, Transfer(net, surrogate)) for name, net in sources.items()),
        SuiteEntry("Square", BLACK_BOX, Square(threat, queries=worth * level.square_queries, **asking)),
        *(SuiteEntry(name, GIVEN, attack) for name, attack in given.items()),
        SuiteEntry(
            "APGD-T-DLR" if classes >= 4 else "APGD-margin",
            WHITE_BOX,
            APGD(threat, average="probability", **averaged, **scale_free),
            on=SURVIVORS,
        ),
        SuiteEntry(
            "NES",
            BLACK_BOX,
            # wide enough to feel a slope across the steps of a network that rounds its input
            NES(
                threat,
                queries=worth * level.nes_queries,
                directions=level.nes_directions,
                sigma=even_change(threat, pixels) / 4,
                **asking,
            ),
            on=SURVIVORS,
        ),
    )


def pairs(entries: Sequence[SuiteEntry], field: str) -> list[tuple[int, int]]:
    """The numbers of the entries (a, b) of PGD that differ in nothing but that b has more of `field`."""
    attacks = [(number, entry.attack) for number, entry in enumerate(entries) if entry.role in (PAPER, WHITE_BOX)]
    return [
        (less, more)
        for less, a in attacks
        for more, b in attacks
        if isinstance(a, PGD) and isinstance(b, PGD) and getattr(a, field) < getattr(b, field)
        if replace(a, **{field: getattr(b, field)}) == b
    ]


def even_change(threat: Threat, pixels: int) -> float:
    """The change of each of so many pixels if a perturbation of the full radius changes all of them alike."""
    return threat.eps / {"linf": 1.0, "l2": math.sqrt(pixels), "l1": float(pixels)}[threat.norm]


def _title(attack: PGD, random: bool) -> str:
    if not random:
        return f"PGD-{attack.steps}"
    return f"PGD-{attack.steps}, {attack.eot} draw{'s' if attack.eot > 1 else ''}"
