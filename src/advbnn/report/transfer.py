"""Attacks that were made on one model and tried on another: the affinity of eq. 17 as a heat map."""

import json
from collections.abc import Mapping

from advbnn.evaluation.records import Record, Records
from advbnn.evaluation.transfer import affinity
from advbnn.report.section import Section
from advbnn.report.select import ball_title, clean_of, draws_of, images_of
from advbnn.report.style import Look
from advbnn.report.tables import NOTHING, Cell, Table, percent

_WORDS = (
    "Each row is a model that was attacked, each column a model that the result was tried on. 1 means that the foreign "
    "attack does as much harm as the model's own, 0 that it does none. Nobody who knows a model should do worse than "
    "one who does not: a value above 1 says that the attack on the model itself is a poor one."
)


def transfer_section(records: Records, looks: Mapping[str, Look]) -> Section | None:
    """The affinity of all pairs of models, one table for each attack."""
    groups: dict[tuple[str, str], dict[tuple[str, str], Record]] = {}
    for record in records.where(kind="transfer", curve=""):
        if record.source is not None:
            group = groups.setdefault((ball_title(record), json.dumps(record.attack)), {})
            group[record.source.label, record.model.label] = record
    tables: list[Table] = []
    for pairs in groups.values():
        # a model's own attack is what the others are compared with
        own = [label for label in looks if (label, label) in pairs and clean_of(records, label) is not None]
        if len(own) > 1:
            name = "affinity" if not tables else f"affinity-{len(tables) + 1}"
            tables.append(_table(name, records, pairs, [looks[label] for label in own]))
    if not tables:
        return None
    return Section(name="transfer", title="Attacks borrowed from other models", words=[_WORDS], tables=tables)


def _table(name: str, records: Records, pairs: Mapping[tuple[str, str], Record], shown: list[Look]) -> Table:
    rows = [
        [Cell(f"from {source.title}"), *(_cell(records, pairs, source.label, target.label) for target in shown)]
        for source in shown
    ]
    first = pairs[shown[0].label, shown[0].label]
    caption = (
        f"Affinity at {ball_title(first)}; below it the accuracy in % that is left. {images_of(list(pairs.values()))}; "
        f"{draws_of(list(pairs.values()))}."
    )
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
