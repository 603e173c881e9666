"""Roughly how long an audit takes, and which share of it each attack: passes are counted, timed and multiplied."""

from collections.abc import Sequence
from typing import Any

from advbnn.attacks import PGD, Threat
from advbnn.evaluation.accuracy import Evaluation
from advbnn.evaluation.audit.attack_suite import ALL, Level, SuiteEntry
from advbnn.evaluation.audit.worst_points import CONTENDERS
from advbnn.machine.timing import seconds_of

_SURVIVORS = 0.5
"""The share of images that are taken to survive the first attacks."""

_GRADIENT = 2.5
"""The time of a pass with a gradient, in passes without one."""


def passes(attack: Any, random: bool) -> tuple[float, float]:
    """Passes with and without a gradient per image, at most, by the settings that attacks have in common."""
    inner = getattr(attack, "attack", attack)  # of a transfer

    def setting(name: str, default: int = 1) -> int:
        return int(getattr(inner, name, None) or default)

    eot = setting("eot") if random else 1
    if hasattr(inner, "queries"):
        return 0.0, float(setting("queries") * eot)
    restarts = setting("restarts")
    steps = restarts * setting("targets") * setting("steps")
    compared = steps if getattr(inner, "pick", "best") == "best" else restarts if restarts > 1 else 0
    if getattr(inner, "compare", "") == "checkpoints":
        compared = min(steps, 18 * restarts * setting("targets"))
    return float(steps * eot), float(compared * setting("selection_samples", 0) if random else 0)


def entry_passes(entry: SuiteEntry, samples: int, random: bool) -> tuple[float, float]:
    """Passes with and without a gradient of an attack and its score, per image of the batch."""
    share = 1.0 if entry.on == ALL else min(_SURVIVORS, entry.first)
    gradients, forwards = passes(entry.attack, random)
    return share * gradients, share * (forwards + samples)


def audit_passes(
    suites: Sequence[Sequence[SuiteEntry]], level: Level, samples: int, ensembles: int, random: bool
) -> tuple[float, float]:
    """Passes with and without a gradient per image of a whole audit under one seed."""
    of_entries = [entry_passes(entry, samples, random) for entries in suites for entry in entries]
    scoring = ensembles * samples + (CONTENDERS * level.comparison_samples if random else 0)
    return sum(g for g, _ in of_entries), sum(f for _, f in of_entries) + len(suites) * scoring


def shares(
    suites: Sequence[Sequence[SuiteEntry]], level: Level, samples: int, ensembles: int, random: bool
) -> list[list[float]]:
    """The share of each attack in an audit under one seed, for each radius."""
    total = _work(*audit_passes(suites, level, samples, ensembles, random))
    return [[_work(*entry_passes(entry, samples, random)) / total for entry in entries] for entries in suites]


def _work(gradients: float, forwards: float) -> float:
    return _GRADIENT * gradients + forwards


def pass_seconds(evaluation: Evaluation, threat: Threat) -> tuple[float, float]:
    """Seconds of a pass with and without a gradient, per image, on one batch of the data."""
    x, y = evaluation.first(evaluation.batch_size)
    attack = PGD(threat, steps=2)
    gradient = seconds_of(lambda: attack(evaluation.fast, x, y, seed=0), x.device) / (2 * len(x))
    forward = seconds_of(lambda: evaluation.classify(x, 0), x.device) / (evaluation.samples * len(x))
    return gradient, forward
