"""Attacks crafted on one model and tried on another: the affinity of eq. 17 as a heat map."""

import json
from collections.abc import Mapping

from advbnn.evaluation.records import Record, Records
from advbnn.evaluation.transfer import affinity
from advbnn.report.elements import NOTHING, Cell, Section, Table, percent
from advbnn.report.select import clean_of, images_of, samples_of
from advbnn.report.style import Look

_WORDS = (
    "Rows: the model on which adversarial examples were crafted. Columns: the model on which they were tried. At 1 "
    "they are as harmful as examples crafted on the model itself, at 0 harmless. A value above 1 means that the attack "
    "on the model itself is weak, since it has more information."
)


def affinity_section(records: Records, looks: Mapping[str, Look]) -> Section | None:
    """The affinity of all pairs of models, one table for each attack."""
    groups: dict[tuple[str, str], dict[tuple[str, str], Record]] = {}
    for record in records.where(kind="transfer", curve=""):
        if record.source is not None:
            group = groups.setdefault((record.ball_title, json.dumps(record.attack)), {})
            group[record.source.label, record.model.label] = record
    tables: list[Table] = []
    for pairs in groups.values():
        # the attack on the model itself is the reference
        own = [label for label in looks if (label, label) in pairs and clean_of(records, label) is not None]
        if len(own) > 1:
            name = "affinity" if not tables else f"affinity-{len(tables) + 1}"
            tables.append(_table(name, records, pairs, [looks[label] for label in own]))
    title = "Transferred attacks"
    return Section(name="transfer", title=title, words=[_WORDS], tables=tables) if tables else None


def _table(name: str, records: Records, pairs: Mapping[tuple[str, str], Record], shown: list[Look]) -> Table:
    rows = [
        [Cell(f"from {source.title}"), *(_cell(records, pairs, source.label, target.label) for target in shown)]
        for source in shown
    ]
    used = list(pairs.values())
    where = pairs[shown[0].label, shown[0].label].ball_title
    caption = f"Affinity at {where}, with the accuracy in %. {images_of(used)}; {samples_of(used)}."
    return Table(name=name, caption=caption, columns=["attack", *(f"on {look.title}" for look in shown)], rows=rows)


def _cell(records: Records, pairs: Mapping[tuple[str, str], Record], source: str, target: str) -> Cell:
    across, own, clean = pairs.get((source, target)), pairs[target, target], clean_of(records, target)
    if across is None or clean is None:
        return NOTHING
    rho = affinity(Records([clean, own, across]))[source][target]
    left = f"{percent(across.accuracy)} %"
    if rho is None:
        return Cell(NOTHING.text, left)
    return Cell(f"{rho:.2f}", left, heat=min(max(rho, 0.0), 1.0), strong=rho > 1)
