"""What a report shows first: one attack per weight sample, one with averaged gradients, and the worst case, by radius.

Every setting of an attack has one name and every name one setting, in all parts of a report: see `Titles`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advbnn.evaluation.audit.attack_suite import fixed_step_title
from advbnn.evaluation.records import Record, Records
from advbnn.report.audited import audited_attacks
from advbnn.report.select import ball

WORST = "worst case"

Point = tuple[str, tuple[str, float]]
"""The label of a model, and the norm and radius of an attack on it."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The accuracies under one attack, or in the worst case, at most one for each model and ball."""

    title: str
    records: Mapping[Point, Record]
    worst: bool = False

    @property
    def balls(self) -> list[tuple[str, float]]:
        """Norms and radii, sorted; without the radius 0."""
        return sorted({place for _, place in self.records if place[1] > 0})

    def of(self, label: str, norm: str | None = None) -> list[Record]:
        """The records of a model by radius, those of one norm if it is given."""
        found = [r for (model, place), r in self.records.items() if model == label and norm in (None, place[0])]
        return sorted(found, key=ball)


class Titles:
    """The names of attacks in a report: one for each setting whatever its radius, and none for two of them."""

    def __init__(self, records: Records) -> None:
        self._title_of: dict[str, str] = {}
        measured = [(r.name, r.attack) for r in records if r.kind == "attack" and r.curve in ("", "radius")]
        suites = [r.details["attacks"] for r in records.where(kind="worst_case")]
        audited = [(entry["name"], entry["attack"]) for suite in suites for entry in suite]
        for name, settings in (*measured, *audited):
            if isinstance(settings, Mapping):
                self._add(name, settings)

    def of(self, name: str, settings: Mapping[str, Any] | None) -> str:
        """The title of an attack with a name in its record."""
        return name if not isinstance(settings, Mapping) else self._title_of.get(_identity(settings), name)

    def _add(self, name: str, settings: Mapping[str, Any]) -> None:
        if _identity(settings) in self._title_of:
            return
        taken = set(self._title_of.values())
        tries = [name, fixed_step_title(settings), *(f"{name} ({number})" for number in range(2, len(taken) + 3))]
        # what the shell calls it says nothing to readers; older audits gave "authors'" to one step size at all radii
        if name.startswith(("paper ", "authors' ")):
            tries = tries[1:]
        self._title_of[_identity(settings)] = next(title for title in tries if title and title not in taken)


def main_series(records: Records, worst: Records, titles: Titles) -> list[Series]:
    """The series of the headline: without and with averaged gradients the most measured attack, and the worst case.

    An attack of the audit is on the images of the worst case, and is preferred to the same attack on others. One whose
    steps cannot reach the radius is left out. Where no attack averages, all attacks are shown.
    """
    found: dict[str, dict[Point, Record]] = {}
    kept = [r for r in records.where(kind="attack") if r.curve in ("", "radius") and r.correct and r.threat is not None]
    audited = [r for one in worst for r in audited_attacks(one) if reaches(r)]
    for record in ([r for r in kept if reaches(r)] or kept) + audited:
        title = titles.of(record.name, record.attack)
        found.setdefault(title, {})[record.model.label, ball(record)] = record
    balls = {ball(record) for record in worst}
    fixed_step = {title: bool(fixed_step_title(_settings(points))) for title, points in found.items()}
    chosen: list[Series] = []
    for averages in (False, True):
        # those beside the worst case count first
        candidates = [
            (sum(place in balls for _, place in points), fixed_step[title], len(points), -number, title)
            for number, (title, points) in enumerate(found.items())
            if (_settings(points).get("eot", 1) > 1) == averages
        ]
        if candidates:
            title = max(candidates)[-1]
            chosen.append(Series(title=title, records=found[title]))
    if worst:
        at = {(r.model.label, ball(r)): r for r in worst}
        return [*chosen, Series(title=WORST, records=at, worst=True)]
    shown = {one.title for one in chosen}
    return chosen + [Series(title=title, records=points) for title, points in found.items() if title not in shown]


def reaches(record: Record) -> bool:
    """Whether the steps of an attack, if it has a fixed size, reach its radius."""
    settings = record.attack
    if not isinstance(settings, Mapping) or not fixed_step_title(settings):
        return True
    return bool(settings.get("steps", 20) * settings["step_size"] >= 0.999 * record.radius)


def _settings(points: Mapping[Point, Record]) -> Mapping[str, Any]:
    settings = next(iter(points.values())).attack
    return settings if isinstance(settings, Mapping) else {}


def _identity(settings: Mapping[str, Any]) -> str:
    """The settings without the radius."""
    return json.dumps({name: value for name, value in settings.items() if name != "threat"}, sort_keys=True)
