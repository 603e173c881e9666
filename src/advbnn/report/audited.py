"""What the records of an audit contain: the worst case, and the accuracy under single attacks of the suite."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from advbnn.evaluation.audit.attack_suite import LEVELS, fixed_step_title
from advbnn.evaluation.audit.headline import by_old_rule
from advbnn.evaluation.records import Record, Records


def worst_cases(records: Records) -> Records:
    """The worst case of each model at each radius, from the most thorough audit."""
    thoroughness = {level: number for number, level in enumerate(LEVELS)}
    found = sorted(records.where(kind="worst_case"), key=lambda record: thoroughness.get(record.name, -1))
    return Records({(record.model.label, record.threat): record for record in found}.values())


def at_most(worst: Record) -> Record | None:
    """An upper bound on the accuracy of an audit by the old rule, as a record; None where it is exact.

    The inconclusive images count as correct, unless a single attack on all images leaves fewer.
    """
    if not by_old_rule(worst) or not any(worst.details["inconclusive"]):
        return None
    single = [entry["correct"] for entry in worst.details["attacks"] if entry["on"] == "all"]
    not_broken = [sum(counts) for counts in zip(worst.correct, worst.details["inconclusive"], strict=True)]
    bounds = zip(worst.correct, map(min, zip(not_broken, *single, strict=True)), strict=True)
    most = tuple(map(max, bounds))
    return None if most == worst.correct else replace(worst, correct=most, outcomes=())


def clean_in(worst: Record) -> Record | None:
    """The accuracy without attack on the images of an audit, as a record."""
    return next((_record(worst, entry) for entry in worst.details["attacks"] if entry["role"] == "clean"), None)


def audited_attacks(worst: Record) -> list[Record]:
    """The accuracies under the single attacks with a fixed step on all images of an audit, as records."""
    on_all = [entry for entry in worst.details["attacks"] if entry["on"] == "all" and entry["attack"]]
    return [_record(worst, entry) for entry in on_all if fixed_step_title(entry["attack"])]


def _record(worst: Record, entry: Mapping[str, Any]) -> Record:
    kind, threat = ("clean", None) if entry["role"] == "clean" else ("attack", worst.threat)
    found = replace(worst, kind=kind, name=entry["name"], attack=entry["attack"], threat=threat, outcomes=())
    kept = {name: value for name, value in worst.details.items() if name == "members"}
    return replace(found, correct=tuple(entry["correct"]), details=kept, seconds=0.0)
