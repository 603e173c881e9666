"""The attacks of an audit: which are tried, how hard, and on which images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from advbnn.attackable import Attackable
from advbnn.attacks import APGD, NES, PGD, Attack, Square, Transfer, paper_pgd
from advbnn.attacks.oracle import Oracle
from advbnn.evaluate import Perturbation
from advbnn.posterior import Bayesian
from advbnn.threat import Threat

NOISE, PAPER, WHITE_BOX, TRANSFER, BLACK_BOX = "noise", "paper", "white box", "transfer", "black box"


@dataclass(frozen=True, kw_only=True)
class Level:
    """How much an audit tries.

    Args:
        draws: K of averaged PGD, each with every number of steps.
        steps: its steps.
        restarts: random starts of an extra PGD with the fewest draws and steps.
        apgd_steps: steps of APGD.
        apgd_draws: draws that its gradients are averaged over.
        targets: wrong classes that targeted APGD tries; all where there are fewer.
        selection_samples: draws by which attacks compare the points that they have found.
        square_queries: budget of Square.
        nes_queries: budget of NES.
        nes_directions: directions of a step of it.
        query_draws: draws that an answer to either is averaged over.
        most_draws: draws after which the worst case leaves an image undecided.
    """

    draws: tuple[int, ...]
    steps: tuple[int, ...]
    restarts: int
    apgd_steps: int
    apgd_draws: int
    targets: int
    selection_samples: int
    square_queries: int
    nes_queries: int
    nes_directions: int
    query_draws: int
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
        square_queries=100,
        nes_queries=250,
        nes_directions=10,
        query_draws=4,
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
        square_queries=1000,
        nes_queries=2000,
        nes_directions=25,
        query_draws=10,
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
        square_queries=5000,
        nes_queries=10_000,
        nes_directions=25,
        query_draws=20,
        most_draws=20_000,
    ),
}


@dataclass(frozen=True)
class Trial:
    """One attack of a battery.

    Args:
        name: what it is called in tables.
        role: `"noise"`; `"paper"`, the authors' attack; `"white box"`, which uses gradients of the network itself;
            `"transfer"`; or `"black box"`.
        attack: the attack.
        on: the images that it is tried on: `"all"`, or those that are `"survivors"` of all trials before it.
    """

    name: str
    role: str
    attack: Perturbation
    on: str = "all"


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """A random point of the allowed set: what any attack has to beat."""

    def _perturb(self, oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
        return oracle.start(self.threat)


def battery(
    level: Level,
    threat: Threat,
    model: Attackable,
    *,
    classes: int,
    random: bool,
    transfer_from: Mapping[str, nn.Module],
) -> tuple[Trial, ...]:
    """The attacks of a level, from the mildest on; those on survivors come last.

    All but targeted APGD and NES, whose cost is highest, are tried on all images: their accuracies are compared with
    each other. A network that is not random is not averaged over draws.
    """
    draws, steps = level.draws if random else (1,), level.steps
    judging = {"selection_samples": level.selection_samples}
    averaged = {"eot": level.apgd_draws, **judging}
    asking = {"eot": level.query_draws, **judging}
    long_pgd = PGD(threat, steps=steps[-1], **judging)
    trials = [Trial("noise", NOISE, Noise(threat))]
    if threat.norm == "linf":
        trials.append(Trial("authors' PGD-20", PAPER, paper_pgd(threat.eps)))
    grid = [replace(long_pgd, eot=k, steps=count) for count in steps for k in draws]
    trials += [Trial(_title(attack, random), WHITE_BOX, attack) for attack in grid]
    restarted = replace(grid[0], restarts=level.restarts)
    trials.append(Trial(f"{_title(restarted, random)}, {level.restarts} starts", WHITE_BOX, restarted))
    trials.append(Trial("APGD-CE", WHITE_BOX, APGD(threat, steps=level.apgd_steps, **averaged)))
    if isinstance(model.model, Bayesian):
        mean = Attackable(model.model.net, model.returns_probabilities)
        trials.append(Trial("from its mean network", TRANSFER, Transfer(mean, long_pgd)))
    trials += [Trial(f"from {name}", TRANSFER, Transfer(net, long_pgd)) for name, net in transfer_from.items()]
    trials.append(Trial("Square", BLACK_BOX, Square(threat, queries=level.square_queries, **asking)))
    scale_free: dict[str, Any] = {"loss": "margin"}
    if classes >= 4:  # the targeted DLR loss is made of four logits
        scale_free = {"loss": "dlr", "targets": min(level.targets, classes - 1)}
    apgd = APGD(threat, steps=level.apgd_steps, average="probability", **averaged, **scale_free)
    trials.append(Trial(f"APGD-{'T-DLR' if classes >= 4 else 'margin'}", WHITE_BOX, apgd, on="survivors"))
    nes = NES(threat, queries=level.nes_queries, directions=level.nes_directions, sigma=threat.eps / 4, **asking)
    return (*trials, Trial("NES", BLACK_BOX, nes, on="survivors"))


def pairs(trials: Sequence[Trial], field: str) -> list[tuple[int, int]]:
    """The numbers of the trials (a, b) of PGD that differ in nothing but that b has more of `field`."""
    attacks = [(number, trial.attack) for number, trial in enumerate(trials) if type(trial.attack) is PGD]
    return [
        (number, other)
        for number, a in attacks
        for other, b in attacks
        if getattr(a, field) < getattr(b, field) and replace(a, **{field: getattr(b, field)}) == b
    ]


def _title(attack: PGD, random: bool) -> str:
    if not random:
        return f"PGD-{attack.steps}"
    return f"PGD-{attack.steps}, {attack.eot} draw{'s' if attack.eot > 1 else ''}"
