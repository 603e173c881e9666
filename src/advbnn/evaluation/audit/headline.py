"""The headline of an audit in words: its number, what is certain beside it, and what its level may miss."""

from typing import NamedTuple

from advbnn.data.chance import chance_note
from advbnn.evaluation.accuracy import CLEAN
from advbnn.evaluation.audit.batch_audit import CERTAIN, INCONCLUSIVE, KNOWN_SEED
from advbnn.evaluation.audit.runner import CHANCE
from advbnn.evaluation.records import Record
from advbnn.names import AUDIT_LEVELS

OLD_RULE = "certain for the infinite ensemble"
"""What the accuracy of an older audit of a random network is; see `by_old_rule`."""

RANGE = (
    f"A worst case that is a range is from an older audit: from the images {OLD_RULE} to what its inconclusive images "
    "and single attacks allow."
)
"""How reports show such an audit."""

NOISE = (
    "The worst case may lie slightly above a single attack on a random network: single attacks are scored by one "
    "ensemble, the worst case by several others."
)
"""Why the worst case of a table may seem not to be the worst; see `noisy`."""

TAKEN_OFF = {"quick": 3.7, "standard": 2.2}
"""How many points the next level takes off at most, by the records of `results/levels` and `results/digits-modes`."""


class Band(NamedTuple):
    """The shares of images that are certain and inconclusive for the infinite ensemble."""

    certain: float
    inconclusive: float

    def __str__(self) -> str:
        return f"infinite ensemble: {100 * self.certain:.1f} % certain, {100 * self.inconclusive:.1f} % inconclusive"


def by_old_rule(record: Record) -> bool:
    """Whether its accuracy is the share that is certain for the infinite ensemble, not that of the classifier.

    For deterministic networks the two are the same.
    """
    return INCONCLUSIVE in record.details and CERTAIN not in record.details and record.details.get("random", True)


def noisy(record: Record) -> bool:
    """Whether its accuracy is a mean over ensembles of a random network; see `NOISE`."""
    return bool(record.details.get("random", True)) and not record.exact and not by_old_rule(record)


def band(record: Record) -> Band | None:
    """The band of a random network; None for others, for exact means, and for a rule that cannot be tested."""
    if INCONCLUSIVE not in record.details or record.exact or not record.details.get("random", True):
        return None
    images = record.n * len(record.seeds)
    certain = record.accuracy if by_old_rule(record) else sum(record.details[CERTAIN]) / images
    return Band(certain, sum(record.details[INCONCLUSIVE]) / images)


def headline(record: Record) -> str:
    """The worst case at one radius, in one line."""
    (low, high), found = record.interval, band(record)
    rule = f" ({OLD_RULE})" if by_old_rule(record) else ""
    line = f"{record.ball_title}, {record.name}: worst-case accuracy {100 * record.accuracy:.1f} %{rule}, "
    line += f"95 % interval {100 * low:.1f} - {100 * high:.1f} %"
    return line if found is None else f"{line}; {found}"


def near_chance(record: Record) -> str | None:
    """A warning if the clean accuracy is near chance; None otherwise, and if the record does not say what chance is."""
    clean = [attack for attack in record.details["attacks"] if attack["role"] == CLEAN]
    share = sum(sum(attack["correct"]) for attack in clean) / max(1, sum(sum(attack["n"]) for attack in clean))
    return chance_note(share, record.details.get(CHANCE), "the clean accuracy") if clean else None


def known_seed(record: Record) -> str | None:
    """The accuracy if the attacker knows the seed of the ensemble, in one line; None where it was not measured."""
    if KNOWN_SEED not in record.details:
        return None
    share = sum(record.details[KNOWN_SEED]) / (record.n * len(record.seeds))
    kept = f"{100 * share:.1f} % if the attacker knows the seed of the ensemble"
    return f"{record.ball_title}, not in the worst case: {kept}"


def next_level(level: str) -> str:
    """The level of an audit, and what the next one usually takes off, in a sentence."""
    later = AUDIT_LEVELS[AUDIT_LEVELS.index(level) + 1 :] if level in AUDIT_LEVELS else ()
    if not later:
        return f"Level {level}: an attack made for this defence may find less."
    longer = f"Level {level}: the next level, {later[0]}, attacks longer"
    if level not in TAKEN_OFF:
        return f"{longer} and may find less."
    return f"{longer}; where we ran both, it lowered accuracy by up to {TAKEN_OFF[level]:.1f} points."
