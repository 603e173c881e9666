"""The flags of an audit, explained for readers who do not know about gradient masking."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from advbnn.evaluation.audit.attack_suite import ROLES
from advbnn.evaluation.audit.flags import FLAGS, Flag
from advbnn.evaluation.audit.headline import band
from advbnn.evaluation.records import Record, Records
from advbnn.report.audited import audited_attacks
from advbnn.report.elements import NOTHING, Cell, Notice, Section, Table, percent, percent_range
from advbnn.report.select import ball
from advbnn.report.series import Titles, reaches
from advbnn.report.style import Look

_WORDS = (
    "Robust accuracy is only as reliable as the attacks behind it. The audit looks for signs that its attacks failed "
    "although the model is vulnerable; the usual cause is masked gradients. A raised flag is no proof, but the robust "
    "accuracy should not be trusted before its cause is known."
)
_RAISED, _NOT_RAISED = "raised", "no"

_Flags = dict[str, list[tuple[str, Flag]]]
"""By name, the flags of each norm and radius, such as "linf 0.035"."""


def checks_section(worst: Records, looks: Mapping[str, Look], titles: Titles) -> Section | None:
    """The flags of all audits, the raised ones with an explanation, and the attacks of the suite."""
    flags = {look: found for label, look in looks.items() if (found := _flags(worst.where(label=label), titles))}
    if not flags:
        return None
    notices = [
        _notice(look, name, raised)
        for look, by_name in flags.items()
        for name, of_radii in by_name.items()
        if (raised := [(where, flag) for where, flag in of_radii if flag.raised])
    ]
    if not notices:
        notices = [Notice(title="No flag is raised", words="The audit found no sign that its attacks failed.")]
    tables, folded = [_overview(flags)], [_evidence(flags), _suite(worst, looks, titles)]
    return Section(name="checks", title="Audit flags", words=[_WORDS], notices=notices, tables=tables, folded=folded)


def _flags(worst: Sequence[Record], titles: Titles) -> _Flags:
    by_name: _Flags = {}
    for record in sorted(worst, key=ball):
        for flag in record.details["flags"]:
            found = Flag(**flag)
            evidence = _renamed(found.evidence, record, titles)
            by_name.setdefault(found.name, []).append((record.ball_title, replace(found, evidence=evidence)))
    return by_name


def _renamed(evidence: str, record: Record, titles: Titles) -> str:
    """The evidence with the names that attacks have in this report, and a warning if one cannot reach the radius."""
    entries = sorted(record.details["attacks"], key=lambda entry: -len(entry["name"]))
    names = {entry["name"]: titles.of(entry["name"], entry["attack"]) for entry in entries}
    weak = {one.name for one in audited_attacks(record) if not reaches(one)}
    used = []
    for name in [name for name in names if name in evidence and (names[name] != name or name in weak)]:
        evidence = evidence.replace(f"under {name}", f"under {names[name]}")
        used += [names[name]] if name in weak else []
    if used:
        evidence += f" The steps of {min(used, key=len)} do not reach this radius, so this attack is weak here."
    return evidence


def _notice(look: Look, name: str, raised: Sequence[tuple[str, Flag]]) -> Notice:
    flag, places = FLAGS[name], ", ".join(where for where, _ in raised)
    title = f"{look.title}: {flag.title[0].lower()}{flag.title[1:]} ({places})"
    evidence = raised[-1][1].evidence  # at the largest radius; the table of the evidence has the others
    return Notice(title=title, words=evidence, advice=flag.advice, alarming=True)


def _overview(flags: Mapping[Look, _Flags]) -> Table:
    names = list(dict.fromkeys(name for by_name in flags.values() for name in by_name))
    rows = [[Cell(FLAGS[name].title), *(_verdict(by_name.get(name)) for by_name in flags.values())] for name in names]
    caption = "The flags, and whether the audit raised them at any radius."
    return Table(name="flags", caption=caption, columns=["flag", *(look.title for look in flags)], rows=rows)


def _verdict(of_radii: Sequence[tuple[str, Flag]] | None) -> Cell:
    if of_radii is None:
        return NOTHING
    raised = [where for where, flag in of_radii if flag.raised]
    if not raised:
        return Cell(_NOT_RAISED)
    return Cell(_RAISED, "" if len(raised) == len(of_radii) else f"at {', '.join(raised)}", strong=True)


def _evidence(flags: Mapping[Look, _Flags]) -> Table:
    rows = []
    for look, by_name in flags.items():
        for name, of_radii in by_name.items():
            for where, flag in of_radii:
                raised = Cell(_RAISED if flag.raised else _NOT_RAISED, strong=flag.raised)
                rows.append([Cell(look.title), Cell(FLAGS[name].title), Cell(where), raised, Cell(flag.evidence)])
    columns = ["model", "flag", "radius", "raised", "evidence"]
    return Table(name="evidence", caption="The evidence behind every flag.", columns=columns, rows=rows)


def _suite(worst: Records, looks: Mapping[str, Look], titles: Titles) -> Table:
    rows = []
    for label, look in looks.items():
        for record in sorted(worst.where(label=label), key=ball):
            where = [Cell(look.title), Cell(record.ball_title)]
            for entry in record.details["attacks"]:
                right, asked = sum(entry["correct"]), sum(entry["n"])
                share = f"{percent(right / asked)} %" if entry["on"] == "all" and asked else ""
                title = Cell(titles.of(entry["name"], entry["attack"]))
                role = Cell(ROLES.get(entry["role"], entry["role"]))
                share = f"({sum(entry['left_out']):,} not tried)" if "left_out" in entry else share
                rows.append([*where, title, role, Cell(f"{right:,} of {asked:,}", share)])
            name = Cell("all together", "" if (found := band(record)) is None else f"({found})")
            left = Cell(f"{percent(record.accuracy)} %", percent_range(*record.interval), strong=True)
            rows.append([*where, name, Cell(f"worst case ({record.name})", strong=True), left])
    return Table(
        name="attack_suite",
        caption="The attacks of the audit one by one, seeds added up. Those with a share in % were tried on all "
        "images; the others only on what the attacks before them had left, or on a sample of it that it did not break.",
        columns=["model", "radius", "attack", "kind", "robust"],
        rows=rows,
    )
