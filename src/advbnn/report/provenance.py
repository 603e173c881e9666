"""What identifies the measurements of a report: models, images, software and settings."""

import json
from collections.abc import Iterable

from advbnn.evaluation.records import Records
from advbnn.report.elements import Cell, Table
from advbnn.report.series import Titles
from advbnn.training.tasks import in_words


def provenance_tables(records: Records, titles: Titles) -> list[Table]:
    """Tables of the models, the images, the settings with the software, and the attacks."""
    models = dict.fromkeys((r.model.label, r.model.kind, r.model.sha256) for r in records)
    data = dict.fromkeys(
        (d.name, f"{d.n:,}", d.rows or "all", d.sha256) for r in records for d in (r.data, r.against) if d
    )
    settings = {
        "weight samples of the classifier": (
            f"all of {r.samples} members" if r.exact else str(r.samples) for r in records if r.curve != "ensemble"
        ),
        "averaging rule": (r.rule for r in records),
        "evaluation seeds": (" ".join(map(str, r.seeds)) for r in records),
        "batch size": (str(r.batch_size) for r in records),
        "precision": (r.precision for r in records),
    }
    software: dict[str, list[str]] = {}
    for record in records:
        for name, version in record.versions.items():
            software.setdefault(name, []).append(version)
    used = [r for r in records if r.attack and not r.curve]
    attacks = dict.fromkeys((titles.of(r.name, r.attack), json.dumps(r.attack)) for r in used)
    rows = [(name, "; ".join(dict.fromkeys(values))) for name, values in [*settings.items(), *software.items()]]
    rows.append(("total measuring time", in_words(sum(r.seconds for r in records))))
    tables = [
        _table("models", "The models.", ["label", "class", "SHA-256 of architecture and weights"], models),
        _table("data", "The images.", ["data", "images", "rows", "SHA-256 of all images"], data),
        _table("settings", "Settings and software.", ["setting", "value"], rows),
    ]
    if attacks:
        tables.append(_table("attacks", "The attacks, except those of curves.", ["name", "settings"], attacks))
    return tables


def _table(name: str, caption: str, columns: list[str], rows: Iterable[tuple[str, ...]]) -> Table:
    return Table(name=name, caption=caption, columns=columns, rows=[[Cell(text) for text in row] for row in rows])
