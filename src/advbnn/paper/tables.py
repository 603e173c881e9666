"""The paper's table with ours below it, the claims, and both in short, as tables of the report."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from advbnn.evaluation.audit.headline import NOISE, RANGE, next_level, noisy
from advbnn.paper.claims import Claim
from advbnn.paper.evidence import Evidence
from advbnn.paper.number import Number
from advbnn.paper.protocol import AUTHORS, RANDOM
from advbnn.paper.verdicts import INCONCLUSIVE, UNMEASURED
from advbnn.report.audited import at_most
from advbnn.report.elements import NOTHING, PLUS_MINUS, Cell, Table, percent_range
from advbnn.report.select import images_of, samples_of
from advbnn.report.style import TITLES

PAPER, LATER, WORST = "the paper", "later work, gradients averaged", "worst case"


def table1(evidence: Evidence) -> Table:
    """Accuracy by defence and radius: the paper's numbers, its attack, averaged gradients, the worst case."""
    radii = (0.0, *evidence.radii)
    rows: list[list[Cell]] = []
    for defense in evidence.measured or ("adv", "adv_bnn"):
        title = Cell(TITLES[defense])
        if defense in evidence.paper:
            rows.append([title, Cell(PAPER), *_cells(evidence.paper[defense])])
        if defense in evidence.later:
            rows.append([title, Cell(LATER), NOTHING, *_cells(evidence.later[defense])])
        rows.append([title, Cell(AUTHORS), *(_cell(evidence.authors(defense, eps)) for eps in radii)])
        if defense in RANDOM:
            cells = [_cell(evidence.averaged(defense, eps)) for eps in evidence.radii]
            rows.append([title, Cell(evidence.experiment.protocol.averaged), NOTHING, *cells])
        worst = [_worst(evidence, defense, eps) for eps in evidence.radii]
        if worst != [NOTHING] * len(worst):
            rows.append([title, Cell(WORST, strong=True), NOTHING, *worst])
    caption = _caption(evidence)
    if any(defense in evidence.later for defense in evidence.measured):
        caption += " Later work: Adv-BNN in the submission on IG-BNN (2022)."
    columns = ["defence", "attack", "no attack", *(f"{eps:.4g}" for eps in evidence.radii)]
    return Table(name="table1", caption=caption, columns=columns, rows=rows)


def summary_table(evidence: Mapping[str, Evidence], radii: Sequence[float]) -> Table:
    """One row per defence: the paper's attack, averaged gradients and the worst case at some radii, or at all.

    Of the reproductions, by their folders, the first gives all its defences, the others those that they trained.
    """
    first = next(iter(evidence.values()))
    radii = radii or first.radii
    rows: list[list[Cell]] = []
    for defense, title in TITLES.items():
        if defense in first.paper:
            row = [Cell(f"{title} ({PAPER})"), *_cells(first.paper[defense][:1])]
            for eps in radii:
                says = first.paper_says(defense, eps)
                row += [NOTHING if says is None else Cell(f"{says:.1f}"), NOTHING, NOTHING]
            rows.append(row)
        for folder, found in evidence.items():
            if defense not in found.measured or (found is not first and defense in found.borrowed):
                continue
            change = folder.removeprefix(f"{found.experiment.data}-").replace("_", " ")
            row = [Cell(title if found is first else f"{title} ({change})"), _cell(found.clean(defense))]
            for eps in radii:
                averaged = found.averaged(defense, eps) if defense in RANDOM else None
                row += [_cell(found.authors(defense, eps)), _cell(averaged)]
                row.append(_worst(found, defense, eps))
            rows.append(row)
    columns = [f"{eps:.4g}: {attack}" for eps in radii for attack in (AUTHORS, "averaged", WORST)]
    return Table(name="summary", caption=_caption(first), columns=["defence", "no attack", *columns], rows=rows)


def claims_table(claims: Sequence[Claim]) -> Table:
    rows = []
    for number, claim in enumerate(claims, start=1):
        text = Cell(claim.text, f"({claim.source or 'not asked by the paper'})")
        rows.append([Cell(str(number)), text, _verdict(claim), Cell(claim.evidence)])
    caption, columns = "The paper's claims and what the records show.", ["no.", "claim", "verdict", "evidence"]
    return Table(name="claims", caption=caption, columns=columns, rows=rows)


def verdicts_table(claims: Mapping[str, Sequence[Claim]]) -> Table:
    """The verdicts of several reproductions side by side, by their folders."""
    rows = [
        [Cell(str(number)), Cell(same[0].text), *(_verdict(claim) for claim in same)]
        for number, same in enumerate(zip(*claims.values(), strict=True), start=1)
    ]
    caption = "Verdicts on the paper's claims, from the records of each folder."
    return Table(name="verdicts", caption=caption, columns=["no.", "claim", *claims], rows=rows)


def _verdict(claim: Claim) -> Cell:
    return Cell(claim.verdict, strong=claim.verdict not in (INCONCLUSIVE, UNMEASURED))


def _caption(evidence: Evidence) -> str:
    used = evidence.records.where(curve="radius", name=AUTHORS)
    protocol = evidence.experiment.protocol
    averaged = evidence.records.where(curve="radius", name=protocol.averaged)
    audited = evidence.records.where(kind="worst_case")
    several = any((number := evidence.clean(defense)) is not None and number.trainings > 1 for defense in TITLES)
    parts = [f"Accuracy in % with its {'standard deviation over the trainings' if several else '95 % interval'}."]
    if used:
        parts.append(f"{images_of(used)}; {samples_of(used)}.")
    step = f"no random start, one weight sample per step, step size {protocol.step_size}"
    parts.append(f"{AUTHORS} is the authors' attack: {step}.")
    if averaged:
        fewer = f", first {images_of(averaged)}" if images_of(averaged) != images_of(used or averaged) else ""
        parts.append(f"Averaged: its gradients over {protocol.eot} EOT samples{fewer}; only random networks need it.")
    if audited:
        level = ", ".join(dict.fromkeys(r.name for r in audited))
        parts.append(f"Worst case: {level} audit of {images_of(audited)}.")
        if any(map(noisy, audited)):
            parts.append(NOISE)
        if any(map(at_most, audited)):
            parts.append(RANGE)
        parts.append(next_level(audited[0].name))
    for folder in dict.fromkeys(evidence.borrowed.values()):
        lent = [TITLES[defense] for defense, name in evidence.borrowed.items() if name == folder]
        parts.append(f"{', '.join(lent)}: the trainings of {folder}.")
    return " ".join(parts)


def _worst(evidence: Evidence, defense: str, eps: float) -> Cell:
    """The worst case; by the audit's old rule, the range from the certain images to those that were not broken."""
    least, most = evidence.worst(defense, eps), evidence.worst_at_most(defense, eps)
    cell = _cell(least, strong=True)
    if least is None or most is None or most.mean == least.mean:
        return cell
    return replace(cell, note=f"to {most.mean:.1f} {percent_range(least.low / 100, most.high / 100)}")


def _cells(values: Sequence[float]) -> list[Cell]:
    return [Cell(f"{value:.1f}") for value in values]


def _cell(number: Number | None, strong: bool = False) -> Cell:
    if number is None:
        return NOTHING
    interval = percent_range(number.low / 100, number.high / 100)
    note = f"{PLUS_MINUS} {number.spread:.1f}" if number.trainings > 1 else interval
    return Cell(f"{number.mean:.1f}", note, strong=strong)
