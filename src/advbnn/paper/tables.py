"""The paper's table with ours below it, and the claims, as tables of the report."""

from collections.abc import Mapping, Sequence

from advbnn.paper.claims import Claim
from advbnn.paper.evidence import Evidence
from advbnn.paper.number import Number
from advbnn.paper.protocol import AUTHORS, RANDOM
from advbnn.paper.verdicts import INCONCLUSIVE, UNMEASURED
from advbnn.report.elements import NOTHING, PLUS_MINUS, Cell, Table, percent_at_most, percent_range
from advbnn.report.select import images_of, samples_of
from advbnn.report.style import TITLES

PAPER, LATER, WORST = "the paper", "later work, draws averaged", "worst case"


def table1(evidence: Evidence) -> Table:
    """Accuracies by defence and radius: the paper's, under its attack, along averaged gradients, in the worst case."""
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
        worst = [evidence.worst(defense, eps) for eps in evidence.radii]
        if any(number is not None for number in worst):
            cells = [_cell(number, strong=True) for number in worst]
            rows.append([title, Cell(WORST, strong=True), NOTHING, *cells])
    return Table(
        name="table1",
        caption=_caption(evidence),
        columns=["defence", "attack", "no attack", *(f"{eps:.4g}" for eps in evidence.radii)],
        rows=rows,
    )


def claims_table(claims: Sequence[Claim]) -> Table:
    """Each claim with its verdict and the evidence."""
    rows = [
        [
            Cell(str(number)),
            Cell(claim.text, f"({claim.source or 'not asked by the paper'})"),
            Cell(claim.verdict, strong=claim.verdict not in (INCONCLUSIVE, UNMEASURED)),
            Cell(claim.evidence),
        ]
        for number, claim in enumerate(claims, start=1)
    ]
    return Table(
        name="claims",
        caption="What the paper claims, and what the records say of it.",
        columns=["no.", "claim", "verdict", "evidence"],
        rows=rows,
    )


def verdicts_table(claims: Mapping[str, Sequence[Claim]]) -> Table:
    """The verdicts of several reproductions side by side, by their names."""
    rows = [
        [
            Cell(str(number)),
            Cell(of_all[0].text),
            *(Cell(claim.verdict, strong=claim.verdict not in (INCONCLUSIVE, UNMEASURED)) for claim in of_all),
        ]
        for number, of_all in enumerate(zip(*claims.values(), strict=True), start=1)
    ]
    return Table(
        name="verdicts",
        caption="The verdicts on the paper's claims, by the records of each folder.",
        columns=["no.", "claim", *claims],
        rows=rows,
    )


def _caption(evidence: Evidence) -> str:
    used = [r for r in evidence.records if r.curve == "radius" and r.name == AUTHORS]
    averaged = [r for r in evidence.records if r.curve == "radius" and r.name == evidence.experiment.protocol.averaged]
    audited = [r for r in evidence.records if r.kind == "worst_case"]
    parts = ["Accuracy in %"]
    parts.append("with its standard deviation over the trainings." if _several(evidence) else "and its 95 % interval.")
    if used:
        parts.append(f"{images_of(used)}; {samples_of(used)}.")
    if averaged and images_of(averaged) != images_of(used or averaged):
        parts.append(f"Averaged gradients on the first {images_of(averaged)}.")
    if audited:
        level = ", ".join(dict.fromkeys(r.name for r in audited))
        parts.append(f"Worst case of the {level} audit on {images_of(audited)}.")
        undecided = max(evidence.inconclusive(defense, eps) for defense in TITLES for eps in evidence.radii)
        if undecided:
            most = percent_at_most(undecided / 100)
            parts.append(f"It counts images as fallen that its draws could not decide, up to {most} %.")
    step = evidence.experiment.protocol.step_size
    parts.append(f"{AUTHORS} is the authors' attack: from the image itself, one draw of the weights a step of {step}.")
    parts.append("For networks that are not random there is nothing to average.")
    if any(defense in evidence.later for defense in evidence.measured):
        parts.append("Later work is what the submission on IG-BNN (2022) reports of Adv-BNN.")
    for folder in dict.fromkeys(evidence.borrowed.values()):
        lent = [TITLES[defense] for defense, name in evidence.borrowed.items() if name == folder]
        parts.append(f"{', '.join(lent)}: the trainings of {folder}.")
    return " ".join(parts)


def _cells(values: Sequence[float]) -> list[Cell]:
    return [Cell(f"{value:.1f}") for value in values]


def _several(evidence: Evidence) -> bool:
    return any((number := evidence.clean(defense)) is not None and number.trainings > 1 for defense in TITLES)


def _cell(number: Number | None, strong: bool = False) -> Cell:
    if number is None:
        return NOTHING
    note = percent_range(number.low / 100, number.high / 100)
    if number.trainings > 1:
        note = f"{PLUS_MINUS} {number.spread:.1f}"
    return Cell(f"{number.mean:.1f}", note, strong=strong)
