"""Composes the contents of a report from records."""

from collections.abc import Mapping, Sequence

from advbnn.errors import ArgumentError
from advbnn.evaluation.records import Records
from advbnn.report.audited import worst_cases
from advbnn.report.elements import Contents, Section, Table
from advbnn.report.picture import pictures
from advbnn.report.provenance import provenance_tables
from advbnn.report.sections.affinity import affinity_section
from advbnn.report.sections.checks import checks_section
from advbnn.report.sections.curves import curve_section
from advbnn.report.sections.headline import clean_records, headline_section
from advbnn.report.sections.smoothness import smoothness_section
from advbnn.report.sections.uncertainty import detection_section, uncertainty_section
from advbnn.report.select import check_one_data_set, labels_of
from advbnn.report.series import Titles, main_series
from advbnn.report.style import looks


def compose(
    records: Records,
    defenses: Mapping[str, str] | None = None,
    *,
    table: Table | None = None,
    claims: Sequence[Section] = (),
) -> Contents:
    """Returns the contents of a report; arguments as for `write_report`."""
    if not records:
        raise ArgumentError("records is empty: there is nothing to report; `advbnn evaluate RUN` makes records")
    check_one_data_set(records)
    shown = looks(labels_of(records), defenses)
    worst = worst_cases(records)
    titles = Titles(records)
    series = main_series(records, worst, titles)
    clean = clean_records(records, worst, shown)
    drawn = pictures(series, clean, shown)
    named = [r.name for one in series for r in one.records.values()]
    found = [
        headline_section(records, worst, series, clean, drawn, shown, titles, table),
        *claims,
        checks_section(worst, shown, titles),
        curve_section("radius", records, shown, named),
        *(curve_section(name, records, shown) for name in ("strength", "ensemble", "alpha")),
        affinity_section(records, shown),
        uncertainty_section(records, shown),
        detection_section(records, shown),
        smoothness_section(records, shown),
    ]
    models = next(iter(shown.values())).title if len(shown) == 1 else f"{len(shown)} models"
    return Contents(
        title=f"Robustness of {models} on {records[0].data.name}",
        looks=shown,
        sections=[*filter(None, found)],
        provenance=provenance_tables(records, titles),
        commands=list(dict.fromkeys(record.command for record in records if record.command)),
        pictures=tuple(drawn),
    )
