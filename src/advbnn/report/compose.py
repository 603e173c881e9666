"""The contents of a report, whatever they are written as."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advbnn.errors import ArgumentError
from advbnn.evaluation.records import Records
from advbnn.report.audited import worst_cases
from advbnn.report.checks import checks_section
from advbnn.report.curves import alpha_section, ensemble_section, radius_section, strength_section
from advbnn.report.headline import headline_section
from advbnn.report.lipschitz import steepness_section
from advbnn.report.provenance import Provenance, provenance
from advbnn.report.section import Section
from advbnn.report.select import check_one_data_set, labels_of
from advbnn.report.style import Look, looks
from advbnn.report.tables import Table
from advbnn.report.transfer import transfer_section
from advbnn.report.uncertainty import detection_section, uncertainty_section


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that a report says.

    Attributes:
        title: its heading.
        looks: the models, in the order of tables and plots.
        sections: what was measured; only of what there are records.
        provenance: where the numbers come from.
    """

    title: str
    looks: Mapping[str, Look]
    sections: Sequence[Section]
    provenance: Provenance

    def tables(self) -> dict[str, Table]:
        """Every table of measurements by its name, those behind the figures included."""
        found = [
            table
            for section in self.sections
            for table in (*section.tables, *section.folded, *(f.numbers for f in section.figures if f.numbers))
        ]
        return {table.name: table for table in found}


def compose(records: Records, first: Sequence[Section] = (), defenses: Mapping[str, str] | None = None) -> Report:
    """The report of the records, all of one data set.

    Args:
        records: what was measured.
        first: sections that come before all that is made of them.
        defenses: by the label of a model, which defence it has; as for `looks`.
    """
    if not records:
        raise ArgumentError("records is empty: there is nothing to report; `advbnn evaluate RUN` makes records")
    check_one_data_set(records)
    shown = looks(labels_of(records), defenses)
    worst = worst_cases(records)
    sections = [
        *first,
        headline_section(records, worst, shown),
        radius_section(records, worst, shown),
        checks_section(worst, shown),
        strength_section(records, shown),
        ensemble_section(records, shown),
        alpha_section(records, shown),
        transfer_section(records, shown),
        uncertainty_section(records, shown),
        detection_section(records, shown),
        steepness_section(records, shown),
    ]
    who = next(iter(shown.values())).title if len(shown) == 1 else f"{len(shown)} models"
    return Report(
        title=f"Robustness of {who} on {records[0].data.name}",
        looks=shown,
        sections=[section for section in sections if section is not None],
        provenance=provenance(records, shown),
    )
