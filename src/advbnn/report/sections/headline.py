"""The main result: accuracy without attack, under the authors' attack, and in the worst case."""

from collections.abc import Mapping, Sequence

from advbnn.attacks.threat import Threat
from advbnn.evaluation.audit.headline import RANGE, next_level
from advbnn.evaluation.records import Record, Records
from advbnn.names import AUDIT_LEVELS
from advbnn.report.audited import accuracy_in, at_most, worst_cases
from advbnn.report.elements import NOTHING, Cell, Section, Table, percent, percent_range
from advbnn.report.select import ball, ball_title, clean_of, images_of, is_authors_attack, middle, radius, samples_of
from advbnn.report.style import Look

AUTHORS, WORST = "authors' attack", "worst case"
_REACH = 20 * 0.007  # how far the paper's steps can move; for larger radii its attack needs a scaled step size

_BOTH = (
    "The table has two numbers for each model and radius. The authors' attack is the one used in the paper: PGD with "
    "20 steps, each along the gradient of a single weight sample. The worst case is the expected accuracy at the worst "
    "point that a whole suite of attacks finds for each image. Both are upper bounds on the true robust accuracy; the "
    "worst case is the tighter one."
)
_NO_AUDIT = (
    "There is no worst case because no audit was run. Accuracy under a single attack can be far too high; "
    "the command advbnn audit RUN measures the worst case."
)
_INTERVALS = (
    "Brackets hold 95 % intervals over the choice of test images; those of a worst case also cover the weight samples. "
    "Attacks never see the weight samples that score them."
)
_LINF = "A linf radius of 0.03 lets the attack change every pixel value by up to 3 % of its range."


def headline_section(records: Records, worst: Records, looks: Mapping[str, Look]) -> Section | None:
    """The headline table with a summary, and every accuracy that was measured."""
    rows_of = _attacks(records, worst)
    measured = [r for r in records if r.correct and r.kind in ("clean", "attack", "transfer") and not r.curve]
    if not rows_of and not measured:
        return None
    words = [_BOTH] if AUTHORS in rows_of and WORST in rows_of else []
    words += [] if WORST in rows_of else [_NO_AUDIT]
    words += [RANGE] if any(map(at_most, worst)) else []
    words += [next_level(name) for name in AUDIT_LEVELS if worst.where(name=name)]
    words += [_LINF] if any(r.threat is not None and r.threat.norm == "linf" for r in [*measured, *worst]) else []
    return Section(
        name="headline",
        title="Robust accuracy",
        words=_summary(rows_of.get(AUTHORS, ()), worst, looks),
        tables=[_table(records, worst, rows_of, looks)],
        folded=[_everything(measured, looks)] if measured else [],
        after=[*words, _INTERVALS],
    )


def middle_threat(records: Records) -> Threat | None:
    """The threat in the middle of the headline table; None if nothing was attacked."""
    attacked = [r.threat for found in _attacks(records, worst_cases(records)).values() for r in found]
    threats = {(t.norm, t.eps): t for t in attacked if t is not None and t.eps > 0}
    return threats[middle(sorted(threats))] if threats else None


def _attacks(records: Records, worst: Records) -> dict[str, list[Record]]:
    """The rows of each model: the authors' attack and the worst case; without these, all attacks by name."""
    single = [r for r in records.where(curve="") if r.correct and r.threat is not None and r.kind == "attack"]
    along = [r for r in records.where(curve="radius") if r.correct]
    audited = [found for r in worst if (found := accuracy_in(r, "paper")) is not None]
    authors_single = [r for r in single if is_authors_attack(r)]
    balls = {ball(r) for r in [*authors_single, *worst]}
    authors_along = [r for r in along if is_authors_attack(r) and (not balls or ball(r) in balls)]
    # prefer the one from the audit, on the same images as the worst case, unless its steps cannot reach the radius
    ordered = [r for r in audited if radius(r) > _REACH] + authors_along + authors_single
    ordered += [r for r in audited if radius(r) <= _REACH]
    authors = {(r.model.label, r.threat): r for r in ordered}
    rows = {AUTHORS: list(authors.values()), WORST: list(worst)}
    if not authors and not worst:
        rows = {}
        for record in single or along:
            rows.setdefault(record.name, []).append(record)
    return {name: found for name, found in rows.items() if found}


def _clean(records: Records, worst: Records, label: str) -> Record | None:
    """The accuracy without attack: measured alone, by the audit, or as the start of a curve."""
    audited = [accuracy_in(record, "clean") for record in worst.where(label=label)]
    found = [clean_of(records, label), *audited, *records.where(curve="radius", label=label, at=0.0)]
    return next((record for record in found if record is not None and record.correct), None)


def _table(
    records: Records, worst: Records, rows_of: Mapping[str, Sequence[Record]], looks: Mapping[str, Look]
) -> Table:
    used = [r for found in rows_of.values() for r in found]
    balls = sorted({ball(r) for r in used if radius(r) > 0})
    rows = []
    for label, look in looks.items():
        clean = _clean(records, worst, label)
        used += [clean] if clean is not None else []
        unharmed = NOTHING if clean is None else _accuracy(clean)
        for name, found in rows_of.items():
            at = {ball(r): r for r in found if r.model.label == label}
            strong = name == WORST
            cells = [_accuracy(at[threat], strong) if threat in at else NOTHING for threat in balls]
            levels = ", ".join(dict.fromkeys(r.name for r in at.values()))
            note = f"({levels})" if strong and levels else ""
            rows.append([Cell(look.title), Cell(name, note, strong=strong), unharmed, *cells])
        if not rows_of:
            rows.append([Cell(look.title), NOTHING, unharmed])
    caption = f"Accuracy in % and its 95 % interval. {images_of(used)}; {samples_of(used)}."
    columns = ["model", "attack", "no attack", *(f"{norm} {eps:.4g}" for norm, eps in balls)]
    return Table(name="headline", caption=caption, columns=columns, rows=rows)


def _everything(measured: Sequence[Record], looks: Mapping[str, Look]) -> Table:
    rows = []
    for r in sorted(measured, key=lambda r: list(looks).index(r.model.label)):
        first = map(Cell, (looks[r.model.label].title, r.name, ball_title(r)))
        last = map(Cell, (percent_range(r.spread.min, r.spread.max), f"{r.samples}", f"{r.n:,}"))
        rows.append([*first, _accuracy(r), *last])
    columns = ["model", "attack", "radius", "accuracy, %", "over the seeds, %", "weight samples", "images"]
    return Table(name="accuracies", caption="Every accuracy that was measured.", columns=columns, rows=rows)


def _accuracy(record: Record, strong: bool = False) -> Cell:
    low, high = record.interval
    if strong and (most := at_most(record)) is not None:
        note = f"to {percent(most.accuracy)} {percent_range(low, most.interval[1])}"
        return Cell(percent(record.accuracy), note, strong=strong)
    return Cell(percent(record.accuracy), percent_range(low, high), strong=strong)


def _summary(authors: Sequence[Record], worst: Sequence[Record], looks: Mapping[str, Look]) -> list[str]:
    """The best model in the worst case, and by how much the authors' attack overstates robustness."""
    if not worst:
        return []
    threat = middle(sorted({ball(record) for record in worst}))
    ranked = sorted((r for r in worst if ball(r) == threat), key=lambda r: -r.accuracy)
    best, low, high = ranked[0], *ranked[0].interval
    sentence = (
        f"At {ball_title(best)} {looks[best.model.label].title} has the highest worst-case accuracy, "
        f"{percent(best.accuracy)} % (95 % interval {percent(low)} to {percent(high)} %)"
    )
    if len(ranked) > 1:
        second = ranked[1]
        sentence += f", followed by {looks[second.model.label].title} with {percent(second.accuracy)} %"
        sentence += "; their intervals overlap" if second.interval[1] > low else ""
    under = {(r.model.label, r.threat): r for r in authors}
    pairs = [(under[r.model.label, r.threat], r) for r in worst if (r.model.label, r.threat) in under]
    one, other = max(pairs, key=lambda pair: pair[0].accuracy - pair[1].accuracy, default=(best, best))
    if one.accuracy > other.accuracy:
        sentence += (
            f". The authors' attack overstates robust accuracy by up to {100 * (one.accuracy - other.accuracy):.1f} "
            f"points: at {ball_title(other)} {looks[other.model.label].title} has {percent(one.accuracy)} % under it "
            f"and {percent(other.accuracy)} % in the worst case"
        )
    return [f"{sentence}."]
