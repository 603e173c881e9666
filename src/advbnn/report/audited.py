"""What the records of an audit contain: the worst case, the attacks of the suite, and flags."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.flags import Flag
from advbnn.evaluation.records import Record, Records


def worst_cases(records: Records) -> Records:
    """The worst case of each model at each radius, from the most thorough audit."""
    thoroughness = {level: number for number, level in enumerate(LEVELS)}
    found = sorted(records.where(kind="worst_case"), key=lambda record: thoroughness.get(record.name, -1))
    return Records({(record.model.label, record.threat): record for record in found}.values())


def attacks_of(worst: Record) -> list[Mapping[str, Any]]:
    """The attacks of the suite; the first entry is the clean images."""
    return list(worst.details["attacks"])


def flags_of(worst: Record) -> list[Flag]:
    """All flags, raised or not."""
    return [Flag(**stored) for stored in worst.details["flags"]]


def accuracy_in(worst: Record, role: str) -> Record | None:
    """The accuracy under the attack with a role, `"clean"` or `"paper"`, as a separate record.

    Only attacks on all images have one, not those that ran on survivors only.
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
