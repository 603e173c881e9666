"""What the records of an audit contain: the worst case, and the accuracy under single attacks of the suite."""

from dataclasses import replace

from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.headline import by_old_rule
from advbnn.evaluation.records import Record, Records


def worst_cases(records: Records) -> Records:
    """The worst case of each model at each radius, from the most thorough audit."""
    thoroughness = {level: number for number, level in enumerate(LEVELS)}
    found = sorted(records.where(kind="worst_case"), key=lambda record: thoroughness.get(record.name, -1))
    return Records({(record.model.label, record.threat): record for record in found}.values())


def at_most(worst: Record) -> Record | None:
    """An upper bound on the accuracy of an audit by the old rule, as a record; None by the new rule.

    The inconclusive images count as correct, unless a single attack on all images leaves fewer.
    """
    if not by_old_rule(worst) or not any(worst.details["inconclusive"]):
        return None
    single = [entry["correct"] for entry in worst.details["attacks"] if entry["on"] == "all"]
    not_broken = [sum(counts) for counts in zip(worst.correct, worst.details["inconclusive"], strict=True)]
    bounds = zip(worst.correct, map(min, zip(not_broken, *single, strict=True)), strict=True)
    return replace(worst, correct=tuple(map(max, bounds)), outcomes=())


def accuracy_in(worst: Record, role: str) -> Record | None:
    """The accuracy under the attack with a role, `"clean"` or `"paper"`, if it ran on all images, as a record."""
    for entry in worst.details["attacks"]:
        if entry["role"] == role and entry["on"] == "all":
            kind, threat = ("clean", None) if role == "clean" else ("attack", worst.threat)
            found = replace(worst, kind=kind, name=entry["name"], attack=entry["attack"], threat=threat)
            return replace(found, correct=tuple(entry["correct"]), outcomes=(), details={}, seconds=0.0)
    return None
