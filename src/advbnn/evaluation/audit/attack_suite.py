"""The attacks of an audit: which ones, with how much effort, and on which images."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.attacks import APGD, ARC, FAB, NES, PGD, Attack, HopSkipJump, Square, Transfer, paper_pgd
from advbnn.attacks.identity import settings_of
from advbnn.attacks.oracle import Oracle
from advbnn.attacks.threat import Threat
from advbnn.bayes.protocol import EXACT_UP_TO, members
from advbnn.evaluation.attackable import Attackable
from advbnn.evaluation.checks import Perturbation
from advbnn.names import AUDIT_LEVELS

NOISE, PAPER, WHITE_BOX, TRANSFER, BLACK_BOX, GIVEN = "noise", "paper", "white box", "transfer", "black box", "given"
ROLES = {PAPER: "white box, fixed step"}
"""What a role is called where it is shown, if not by its name."""

ALL, SURVIVORS = "all", "survivors"

_FEWEST_FIRST = 32
"""Survivors of a batch that a black-box attack tries at least, if there are so many."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """The effort of an audit.

    Args:
        eot: EOT samples of PGD; every number is combined with every number of `steps`.
        restarts: random restarts of one more PGD, with the fewest EOT samples and steps.
        apgd_compare: where APGD compares its points on selection samples. The samples of a gradient must not be too few
            to control it between checkpoints.
        targets: wrong classes of targeted APGD; all where there are fewer.
        random_targets: the same against a network that has to be sampled: each class costs `apgd_eot` times as much.
        selection_samples: weight samples by which attacks select their best point.
        query_eot: weight samples averaged in one query of a black-box attack. Against a deterministic network, or
            the exact mean of a mixture, the attack makes that many times more queries instead.
        fab_steps: steps of FAB; 0 leaves it out.
        arc_members: ARC fools the networks of a finite mixture of at most that many, one by one.
        arc_on_samples: ARC also attacks other random networks, by `arc_members` of their weight samples.
        arc_classes: wrong classes that ARC considers at each.
        label_queries: queries of HopSkipJump; 0 leaves it out.
        black_box_share: the images of a batch, as a share, that a black-box attack tries first: see `SuiteEntry.first`.
        known_seed_steps: steps of the attack that knows the seed of the ensemble; 0 leaves it out.
        comparison_samples: weight samples by which the worst of the most dangerous points of an image is chosen.
        ensembles: R, independent ensembles of 20 weight samples that score the worst point of each image; of smaller
            ensembles as many more.
        max_weight_samples: weight samples after which the test of the infinite ensemble is inconclusive.
    """

    eot: tuple[int, ...]
    steps: tuple[int, ...]
    restarts: int
    apgd_steps: int
    apgd_eot: int
    apgd_compare: str
    targets: int
    random_targets: int
    selection_samples: int
    query_eot: int
    square_queries: int
    nes_queries: int
    nes_directions: int
    fab_steps: int
    arc_steps: int
    arc_members: int
    arc_on_samples: bool
    arc_classes: int
    label_queries: int
    black_box_share: float
    known_seed_steps: int
    comparison_samples: int
    ensembles: int
    max_weight_samples: int


_SETTINGS: dict[str, tuple[Any, Any, Any]] = {  # of the quick, the standard and the thorough level
    "eot": ((1, 8), (1, 5, 20), (1, 5, 20, 50)),
    "steps": ((10, 30), (20, 100), (20, 100, 500)),
    "restarts": (3, 5, 10),
    "apgd_steps": (20, 100, 200),
    "apgd_eot": (4, 20, 40),
    "apgd_compare": ("every step", "checkpoints", "every step"),
    "targets": (2, 9, 9),
    "random_targets": (2, 3, 9),
    "selection_samples": (8, 20, 40),
    "query_eot": (4, 10, 20),
    "square_queries": (120, 500, 1000),
    "nes_queries": (250, 500, 1000),
    "nes_directions": (10, 25, 25),
    "fab_steps": (0, 50, 100),
    "arc_steps": (5, 10, 20),
    "arc_members": (5, 10, 20),
    "arc_on_samples": (False, True, True),
    "arc_classes": (2, 3, 9),
    "label_queries": (0, 500, 1000),
    "black_box_share": (0.1, 0.2, 1.0),
    "known_seed_steps": (0, 50, 100),
    "comparison_samples": (200, 400, 1000),
    "ensembles": (10, 20, 50),
    "max_weight_samples": (1000, 5000, 20_000),
}
LEVELS = {
    level: Level(**{name: values[column] for name, values in _SETTINGS.items()})
    for column, level in enumerate(AUDIT_LEVELS)
}


@dataclass(frozen=True)
class SuiteEntry:
    """One attack of a suite.

    Args:
        role: `"noise"`; `"paper"`, the authors' attack; `"white box"`, with gradients of the network itself;
            `"transfer"`; `"black box"`; or `"given"` by the user.
        on: the images that it attacks: `"all"`, or the `"survivors"` of all entries before it.
        first: with a share below 1, so many of the images of a batch, drawn from the survivors, are attacked first, and
            the other survivors only if their chances to be correct fall by one or more in all, as if one is broken.
    """

    name: str
    role: str
    attack: Perturbation
    on: str = ALL
    first: float = 1.0

    def sample(self, rows: Tensor, images: int, seed: int) -> tuple[Tensor, Tensor]:
        """Which of the survivors `rows` of a batch of `images` are attacked first, and the others, both in order."""
        count = max(_FEWEST_FIRST, math.ceil(self.first * images)) if self.first < 1 else len(rows)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).to(rows.device)
        first, others = (rows[part.sort().values] for part in (order[:count], order[count:]))
        return first, others


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
    samples: int,
    transfer_from: Mapping[str, nn.Module],
    given: Mapping[str, Perturbation],
) -> tuple[SuiteEntry, ...]:
    """The attacks of a level at one radius.

    All attack all images, since their accuracies are compared, except the last ones: targeted APGD, FAB, ARC and the
    black boxes cost most, and attack only the survivors; black boxes first a sample of these. A deterministic network
    is attacked without EOT. A mixture of a few networks is attacked with the same effort, by exact means over all of
    them, so that the two can be compared. Of the `given` attacks, those at this radius are included.

    The last attacks aim at the classifier itself: at the mean probability of its `samples`, or at the mean loss of a
    pass if it is one pass, which takes one pass per gradient instead of two.
    """
    mixture = len(members(model, at_most=EXACT_UP_TO)) if random else 0
    selection: dict[str, Any] = {"selection_samples": level.selection_samples}
    apgd = {"steps": level.apgd_steps, "eot": level.apgd_eot, "compare": level.apgd_compare, **selection}
    black_box = {"eot": level.query_eot, **selection}
    sampled = random and not mixture
    query_factor = 1 if sampled else level.query_eot
    most_eot = level.eot[-1]
    entries = [SuiteEntry("noise", NOISE, Noise(threat))]
    if threat.norm == "linf":
        single = _single_sample(threat)
        entries.append(SuiteEntry(fixed_step_title(settings_of(single)), PAPER, single))
        if random:
            averaged = replace(single, eot=most_eot)
            entries.append(SuiteEntry(fixed_step_title(settings_of(averaged)), WHITE_BOX, averaged))
    averaged_over = level.eot if random else (1,)
    efforts = itertools.product(level.steps, (averaged_over[0], averaged_over[-1]) if mixture else averaged_over)
    grid = [PGD(threat, steps=steps, eot=eot, **selection) for steps, eot in efforts]
    grid.append(replace(grid[0], restarts=level.restarts))
    entries += [SuiteEntry(_title(pgd, random), WHITE_BOX, pgd) for pgd in grid]
    entries.append(SuiteEntry("APGD-CE", WHITE_BOX, APGD(threat, **apgd)))
    # a source may be random where the network is not; a deterministic source runs once all the same
    surrogate = replace(grid[-2], eot=most_eot)
    own = {"its mean network": model.mean, "itself with logits of a usual size": model.rescaled}
    sources = {name: net for name, net in own.items() if net is not None} | dict(transfer_from)
    entries += [SuiteEntry(f"from {name}", TRANSFER, Transfer(net, surrogate)) for name, net in sources.items()]
    entries += [SuiteEntry(name, GIVEN, attack) for name, attack in given.items() if attack.threat == threat]
    targets = min(level.random_targets if sampled else level.targets, classes - 1)
    title, scale_free = "APGD-T-DLR", {**apgd, "loss": "dlr", "targets": targets}
    if classes < 4:  # the targeted DLR loss compares four classes
        title, scale_free = "APGD-margin", {**apgd, "loss": "margin"}
    square = Square(threat, queries=query_factor * level.square_queries, **black_box)
    nes = NES(
        threat,
        queries=query_factor * level.nes_queries,
        directions=level.nes_directions,
        sigma=even_change(threat, pixels) / 4,  # sees a slope across the steps of a network that quantises its input
        **black_box,
    )
    average = "loss" if random and samples == 1 else "probability"
    entries.append(SuiteEntry(title, WHITE_BOX, APGD(threat, average=average, **scale_free), SURVIVORS))
    if level.fab_steps:
        fab = FAB(
            threat, steps=level.fab_steps, targets=level.targets, eot=level.apgd_eot if random else 1, **selection
        )
        if sampled:  # a step takes the gradient of a mean, which costs most
            fab = replace(fab, steps=level.fab_steps // 2, targets=3)
        entries.append(SuiteEntry("FAB", WHITE_BOX, fab, SURVIVORS))
    one_by_one = 0 < mixture <= level.arc_members or (random and level.arc_on_samples)
    if one_by_one and threat.norm != "l1":
        arc = ARC(threat, steps=level.arc_steps, members=level.arc_members, classes=level.arc_classes)
        entries.append(SuiteEntry("ARC", WHITE_BOX, arc, SURVIVORS))
    by_queries: dict[str, Attack] = {"Square": square, "NES": nes}
    if level.label_queries and threat.norm != "l1" and all(map(math.isfinite, threat.bounds)):
        by_queries["HopSkipJump"] = HopSkipJump(
            threat, queries=query_factor * level.label_queries, eot=level.query_eot if mixture else 1, **selection
        )
    first = level.black_box_share
    return (*entries, *(SuiteEntry(name, BLACK_BOX, one, SURVIVORS, first) for name, one in by_queries.items()))


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


def fixed_step_title(settings: Mapping[str, Any]) -> str:
    """`"PGD-20, step 0.007"`, with its EOT samples: the name of PGD with a fixed step and without a random start.

    Empty for all other attacks. The settings are those of `settings_of`; one name has one setting.
    """
    own = {"name", "threat", "steps", "step_size", "random_start", "eot"}
    if settings.get("name") != "PGD" or settings.get("random_start", True) or set(settings) - own:
        return ""
    if "step_size" not in settings:
        return ""
    eot = settings.get("eot", 1)
    averaged = f", {eot} EOT samples" if eot > 1 else ""
    return f"PGD-{settings.get('steps', 20)}, step {settings['step_size']:.4g}{averaged}"


def _single_sample(threat: Threat) -> PGD:
    """The authors' attack; where its 20 steps of 0.007 do not reach the radius, with their share of a radius of 8/256.

    An attack that cannot reach the radius would look weak for no fault of the network.
    """
    single = replace(paper_pgd(threat.eps), threat=threat)  # whose box need not be [0, 1]
    assert single.step_size is not None
    return single if single.steps * single.step_size >= threat.eps else replace(single, step_size=0.224 * threat.eps)


def _title(attack: PGD, random: bool) -> str:
    effort = [f"EOT {attack.eot}"] if random else []
    if attack.restarts > 1:
        effort.append(f"{attack.restarts} restarts")
    return f"PGD-{attack.steps} ({', '.join(effort)})" if effort else f"PGD-{attack.steps}"
