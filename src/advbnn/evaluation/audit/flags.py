"""Flags: signs that a robust accuracy is overestimated, and the statistics behind them.

A difference raises a flag if it is statistically significant and large enough to matter. To add a flag, write a
function of `Findings` in `attack_flags.py` or `probe_flags.py` and decorate it with `flag`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from advbnn.evaluation.audit.attack_suite import ALL, SuiteEntry
from advbnn.evaluation.audit.history import History
from advbnn.evaluation.intervals import clopper_pearson

CHANCE = 0.001
"""The significance level of one comparison."""

SMALLEST = 0.05
"""The smallest difference of two accuracies that counts, however significant."""


@dataclass(frozen=True)
class Flag:
    """One check of an audit, raised or not.

    Attributes:
        name: a key of `FLAGS`.
        evidence: what was measured, in words.
        numbers: what was measured, in numbers; None where there is no measurement.
    """

    name: str
    raised: bool
    evidence: str
    numbers: Mapping[str, float | None]

    @property
    def title(self) -> str:
        """The problem in a few words."""
        return FLAGS[self.name].title


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What an audit has measured at one radius: for each image the share of seeds under which it is correct, [n].

    Attributes:
        right: under each attack, [n, entries]; NaN where an attack was not run, as on broken images.
        worst: at the worst point of all attacks together.
        large_eps: at a radius at which no classifier can be robust; None if there is no such radius.
        probes: the results of `probe`.
        probabilities: whether the network returns probabilities.
        history: what many passes on a few images have shown.
    """

    entries: Sequence[SuiteEntry]
    right: Tensor
    worst: Tensor
    large_eps: Tensor | None
    probes: Mapping[str, Tensor]
    random: bool
    probabilities: bool
    history: History = field(default_factory=History)

    def under(self, number: int) -> Tensor:
        """The images that are correct under the attack of this number."""
        return self.right[:, number]

    def strongest(self, *roles: str) -> int:
        """The number of the strongest attack of the given roles, among those that ran on all images."""
        numbers = [n for n, entry in enumerate(self.entries) if entry.role in roles and entry.on == ALL]
        return min(numbers, key=lambda number: share(self.under(number)))


class Decision(NamedTuple):
    """What the function of a flag returns; see `Flag`."""

    raised: bool
    evidence: str
    numbers: Mapping[str, float | None] = {}


def decision(raised: bool, seen: str, problem: str, **numbers: float) -> Decision:
    """A decision whose evidence is what was seen, followed by the problem if the flag is raised."""
    return Decision(raised, f"{seen}: {problem}." if raised else f"{seen}.", numbers)


_Decide = Callable[[Findings], Decision]


class Check(NamedTuple):
    """What a raised flag says, what follows from it, and the function that decides."""

    title: str
    advice: str
    decide: _Decide


FLAGS: dict[str, Check] = {}
"""All flags by name; `flag` adds them."""


def flag(title: str, advice: str) -> Callable[[_Decide], _Decide]:
    """Register the decorated function as the flag of its name."""

    def add(decide: _Decide) -> _Decide:
        FLAGS[decide.__name__] = Check(title, advice, decide)
        return decide

    return add


def all_flags(found: Findings) -> tuple[Flag, ...]:
    return tuple(Flag(name, *check.decide(found)) for name, check in FLAGS.items())


def below(lower: Tensor, upper: Tensor) -> bool:
    """Whether `lower` is the lower of two accuracies on the same images, significantly and by at least `SMALLEST`.

    If the accuracies are equal, the images that differ favour either side with probability 1/2: the number that favour
    `upper` is binomial (the sign test; for a single seed, McNemar's exact test). Each argument holds for each image the
    share of seeds under which it is correct, [n].
    """
    wins = (upper > lower)[upper != lower]
    return share(upper) - share(lower) >= SMALLEST and more_than(0.5, wins)


def more_than(least: float, images: Tensor) -> bool:
    """Whether the share of True among the `images` is significantly larger than `least`."""
    return len(images) > 0 and clopper_pearson(int(images.sum()), len(images), 1 - 2 * CHANCE)[0] > least


def share(right: Tensor) -> float:
    """The mean, such as an accuracy."""
    return right.double().mean().item()


def percent(right: Tensor) -> str:
    """The mean as a percentage, for sentences."""
    return f"{100 * share(right):.1f} %"
