"""What audits have left in records: worst cases, the attacks of the attack_suite, and flags."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.flags import Flag
from advbnn.evaluation.records import Record, Records


def worst_cases(records: Records) -> Records:
    """The worst case of each model at each radius, by the most thorough audit that there is."""
    thoroughness = {level: number for number, level in enumerate(LEVELS)}
    found = sorted(records.where(kind="worst_case"), key=lambda record: thoroughness.get(record.name, -1))
    return Records({(record.model.label, record.threat): record for record in found}.values())


def attacks_of(worst: Record) -> list[Mapping[str, Any]]:
    """The attack_suite, attack by attack, the clean images first."""
    return list(worst.details["attacks"])


def flags_of(worst: Record) -> list[Flag]:
    """All flags, raised or not."""
    return [Flag(**stored) for stored in worst.details["flags"]]


def accuracy_in(worst: Record, role: str) -> Record | None:
    """The accuracy under the attack of a role, `"clean"` or `"paper"`, as a record of its own.

    Only attacks on all images have one; those that tried what others had left do not.
    """
    for entry in attacks_of(worst):
        if entry["role"] == role and entry["on"] == "all":
            return replace(
                worst,
                kind="clean" if role == "clean" else "attack",
                name=entry["name"],
                attack=entry["attack"],
                threat=None if role == "clean" else worst.threat,
                correct=tuple(entry["correct"]),
                outcomes=(),
                details={},
                seconds=0.0,
            )
    return None
