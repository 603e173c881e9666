"""Roughly how long an audit takes: a gradient and a forward pass are timed on a batch, and multiplied."""

from collections.abc import Sequence
from typing import Any

from advbnn.attacks import PGD, Threat
from advbnn.evaluation.accuracy import Evaluation
from advbnn.evaluation.audit.attack_suite import ALL, Level, SuiteEntry
from advbnn.evaluation.audit.worst_points import CONTENDERS
from advbnn.machine.timing import seconds_of

_SURVIVORS = 0.5
"""The share of images that are taken to survive the first attacks."""


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


def audit_passes(
    suites: Sequence[Sequence[SuiteEntry]], level: Level, samples: int, ensembles: int, random: bool
) -> tuple[float, float]:
    """Passes with and without a gradient per image of a whole audit under one seed."""
    gradients = forwards = 0.0
    for entries in suites:
        for entry in entries:
            share = 1.0 if entry.on == ALL else min(_SURVIVORS, entry.first)
            of_attack = passes(entry.attack, random)
            gradients, forwards = gradients + share * of_attack[0], forwards + share * (of_attack[1] + samples)
        forwards += ensembles * samples + (CONTENDERS * level.comparison_samples if random else 0)
    return gradients, forwards


def pass_seconds(evaluation: Evaluation, threat: Threat) -> tuple[float, float]:
    """Seconds of a pass with and without a gradient, per image, on one batch of the data."""
    x, y = evaluation.first(evaluation.batch_size)
    attack = PGD(threat, steps=2)
    gradient = seconds_of(lambda: attack(evaluation.fast, x, y, seed=0), x.device) / (2 * len(x))
    forward = seconds_of(lambda: evaluation.classify(x, 0), x.device) / (evaluation.samples * len(x))
    return gradient, forward
