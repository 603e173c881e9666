"""The attacks of an audit: which ones, with how much effort, and on which images."""

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
    """The effort of an audit.

    Args:
        eot: EOT samples of PGD; every number is combined with every number of steps.
        steps: its steps.
        restarts: random restarts of one more PGD, with the fewest EOT samples and steps.
        apgd_steps: steps of APGD.
        apgd_eot: EOT samples of APGD.
        targets: wrong classes of targeted APGD; all where there are fewer.
        selection_samples: weight samples by which attacks select their best point.
        query_eot: weight samples averaged in one query of a black-box attack.
        square_queries: queries of Square; for a deterministic network `query_eot` times as many.
        nes_queries: queries of NES, likewise.
        nes_directions: directions per step of NES.
        max_weight_samples: weight samples after which the test of a point is inconclusive.
    """

    eot: tuple[int, ...]
    steps: tuple[int, ...]
    restarts: int
    apgd_steps: int
    apgd_eot: int
    targets: int
    selection_samples: int
    query_eot: int
    square_queries: int
    nes_queries: int
    nes_directions: int
    max_weight_samples: int


LEVELS = {
    "quick": Level(
        eot=(1, 8),
        steps=(10, 30),
        restarts=3,
        apgd_steps=20,
        apgd_eot=4,
        targets=2,
        selection_samples=8,
        query_eot=4,
        square_queries=120,
        nes_queries=250,
        nes_directions=10,
        max_weight_samples=1000,
    ),
    "standard": Level(
        eot=(1, 5, 20),
        steps=(20, 100),
        restarts=5,
        apgd_steps=100,
        apgd_eot=20,
        targets=9,
        selection_samples=20,
        query_eot=10,
        square_queries=500,
        nes_queries=500,
        nes_directions=25,
        max_weight_samples=5000,
    ),
    "thorough": Level(
        eot=(1, 5, 20, 50),
        steps=(20, 100, 500),
        restarts=10,
        apgd_steps=200,
        apgd_eot=40,
        targets=9,
        selection_samples=40,
        query_eot=20,
        square_queries=1000,
        nes_queries=1000,
        nes_directions=25,
        max_weight_samples=20_000,
    ),
}


@dataclass(frozen=True)
class SuiteEntry:
    """One attack of a suite.

    Args:
        name: its name in tables.
        role: `"noise"`; `"paper"`, the authors' attack; `"white box"`, with gradients of the network itself;
            `"transfer"`; `"black box"`; or `"given"` by the user.
        attack: the attack.
        on: the images that it attacks: `"all"`, or the `"survivors"` of all entries before it.
    """

    name: str
    role: str
    attack: Perturbation
    on: str = ALL


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """A random point of the allowed set: the baseline that every attack has to beat."""

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

    All attack all images, since their accuracies are compared, except targeted APGD and NES. These cost most, come
    last, and attack only the survivors. A deterministic network is attacked without EOT.
    """
    selection: dict[str, Any] = {"selection_samples": level.selection_samples}
    apgd = {"steps": level.apgd_steps, "eot": level.apgd_eot, **selection}
    black_box = {"eot": level.query_eot, **selection}
    query_factor = 1 if random else level.query_eot
    most_eot = level.eot[-1]
    authors = []
    if threat.norm == "linf":
        single = replace(paper_pgd(threat.eps), threat=threat)  # whose box need not be [0, 1]
        authors.append(SuiteEntry("authors' PGD-20", PAPER, single))
        if random:
            averaged = replace(single, eot=most_eot)
            authors.append(SuiteEntry(f"authors' PGD-20 (EOT {most_eot})", WHITE_BOX, averaged))
    grid = [
        PGD(threat, steps=steps, eot=eot, **selection)
        for steps in level.steps
        for eot in (level.eot if random else (1,))
    ]
    restarted = replace(grid[0], restarts=level.restarts)
    # a source may be random where the network is not; a deterministic source runs once all the same
    surrogate = replace(grid[-1], eot=most_eot)
    scale_free: dict[str, Any] = {"loss": "margin"}
    if classes >= 4:  # the targeted DLR loss compares four classes
        scale_free = {"loss": "dlr", "targets": min(level.targets, classes - 1)}
    sources = dict(transfer_from)
    mean = posterior_mean(model.model)
    if mean is not None:
        sources = {"its mean network": Attackable(mean, model.returns_probabilities), **sources}
    return (
        SuiteEntry("noise", NOISE, Noise(threat)),
        *authors,
        *(SuiteEntry(_title(pgd, random), WHITE_BOX, pgd) for pgd in grid),
        SuiteEntry(_title(restarted, random), WHITE_BOX, restarted),
        SuiteEntry("APGD-CE", WHITE_BOX, APGD(threat, **apgd)),
        *(SuiteEntry(f"from {name}", TRANSFER, Transfer(net, surrogate)) for name, net in sources.items()),
        SuiteEntry("Square", BLACK_BOX, Square(threat, queries=query_factor * level.square_queries, **black_box)),
        *(SuiteEntry(name, GIVEN, attack) for name, attack in given.items()),
        SuiteEntry(
            "APGD-T-DLR" if classes >= 4 else "APGD-margin",
            WHITE_BOX,
            APGD(threat, average="probability", **apgd, **scale_free),
            on=SURVIVORS,
        ),
        SuiteEntry(
            "NES",
            BLACK_BOX,
            # large enough to see a slope across the steps of a network that quantises its input
            NES(
                threat,
                queries=query_factor * level.nes_queries,
                directions=level.nes_directions,
                sigma=even_change(threat, pixels) / 4,
                **black_box,
            ),
            on=SURVIVORS,
        ),
    )


def pairs(entries: Sequence[SuiteEntry], field: str) -> list[tuple[int, int]]:
    """The numbers (a, b) of the PGD entries that are equal except that b has more of `field`."""
    attacks = [(number, entry.attack) for number, entry in enumerate(entries) if entry.role in (PAPER, WHITE_BOX)]
    return [
        (less, more)
        for less, a in attacks
        for more, b in attacks
        if isinstance(a, PGD) and isinstance(b, PGD) and getattr(a, field) < getattr(b, field)
        if replace(a, **{field: getattr(b, field)}) == b
    ]


def even_change(threat: Threat, pixels: int) -> float:
    """The change of each pixel if a perturbation of the full radius changes all pixels equally."""
    return threat.eps / {"linf": 1.0, "l2": math.sqrt(pixels), "l1": float(pixels)}[threat.norm]


def _title(attack: PGD, random: bool) -> str:
    effort = [f"EOT {attack.eot}"] if random else []
    if attack.restarts > 1:
        effort.append(f"{attack.restarts} restarts")
    return f"PGD-{attack.steps} ({', '.join(effort)})" if effort else f"PGD-{attack.steps}"
