"""The main result: the answer in words, the picture, and the table of accuracies with and without attack."""

from collections.abc import Mapping, Sequence

from advbnn.attacks.threat import Threat
from advbnn.evaluation.audit.headline import NOISE, RANGE, next_level, noisy
from advbnn.evaluation.records import Record, Records
from advbnn.names import AUDIT_LEVELS
from advbnn.report.answer import answer
from advbnn.report.audited import at_most, clean_in, worst_cases
from advbnn.report.elements import NOTHING, Cell, Section, Table, percent, percent_range
from advbnn.report.picture import Picture
from advbnn.report.select import ball, clean_of, images_of, middle, samples_of
from advbnn.report.series import WORST, Series, Titles, main_series
from advbnn.report.style import Look

_WORST = (
    "The worst case is the expected accuracy at the worst point that a whole suite of attacks finds for each image. "
    "All numbers under attack are upper bounds on the true robust accuracy; the worst case is the tightest, up to "
    "sampling noise."
)
_AVERAGED = (
    "EOT samples are the weight samples over which an attack averages each gradient; with one, an attack follows the "
    "noise of a random network and may look weaker than it is."
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


def headline_section(
    records: Records,
    worst: Records,
    series: Sequence[Series],
    clean: Mapping[str, Record],
    drawn: Sequence[Picture],
    looks: Mapping[str, Look],
    titles: Titles,
    table: Table | None = None,
) -> Section | None:
    """The answer, the picture and the table; another `table` of the same may be given. All accuracies are folded."""
    measured = [r for r in records if r.correct and r.kind in ("clean", "attack", "transfer") and not r.curve]
    if not series and not measured:
        return None
    words = [_WORST] if worst else [_NO_AUDIT]
    words += [_AVERAGED] if len(series) - len(worst[:1]) > 1 else []
    if table is None:  # else its caption says so
        words += [RANGE] if any(map(at_most, worst)) else []
        words += [NOISE] if any(map(noisy, worst)) else []
        words += [next_level(name) for name in AUDIT_LEVELS if worst.where(name=name)]
    words += [_LINF] if any(r.threat is not None and r.threat.norm == "linf" for r in [*measured, *worst]) else []
    return Section(
        name="headline",
        title="Robust accuracy",
        words=answer(series, clean, looks),
        figures=[picture.figure() for picture in drawn],
        tables=[table or headline_table(records, worst, series, clean, looks)] if table or series or clean else [],
        folded=[_everything(measured, looks, titles)] if measured else [],
        after=[" ".join(words[:2]), *words[2:], _INTERVALS],
    )


def middle_threat(records: Records) -> Threat | None:
    """The threat in the middle of the headline table; None if nothing was attacked."""
    series = main_series(records, worst_cases(records), Titles(records))
    attacked = [r for one in series for r in one.records.values() if r.radius > 0]
    places = sorted({ball(r) for r in attacked})
    return next(r.threat for r in attacked if ball(r) == middle(places)) if places else None


def clean_records(records: Records, worst: Records, looks: Mapping[str, Look]) -> dict[str, Record]:
    """The accuracy of each model without attack: measured alone, by the audit, or as the start of a curve."""
    found: dict[str, Record] = {}
    for label in looks:
        audited = [clean_in(record) for record in worst.where(label=label)]
        tries = [clean_of(records, label), *audited, *records.where(curve="radius", label=label, at=0.0)]
        known = [record for record in tries if record is not None and record.correct]
        if known:
            found[label] = max(known, key=lambda record: record.n)
    return found


def headline_table(
    records: Records, worst: Records, series: Sequence[Series], clean: Mapping[str, Record], looks: Mapping[str, Look]
) -> Table:
    """Each model under each attack, at the radii of the audit and of single measurements; else at those of curves."""
    single = [r for r in records.where(kind="attack", curve="") if r.correct]
    chosen = {ball(r) for r in [*worst, *single]}
    balls = sorted({place for one in series for place in one.balls if not chosen or place in chosen})
    rows: list[list[Cell]] = []
    used: list[Record] = list(clean.values())
    for label, look in looks.items():
        unharmed = accuracy_cell(clean[label]) if label in clean else NOTHING
        for one in series:
            at = {place: one.records[label, place] for place in balls if (label, place) in one.records}
            levels = ", ".join(dict.fromkeys(r.name for r in at.values())) if one.worst else ""
            cells = [accuracy_cell(at[place], one.worst) if place in at else NOTHING for place in balls]
            used += at.values()
            name = Cell(one.title, f"({levels})" if levels else "", strong=one.worst)
            if at or not any(other.of(label) for other in series):
                rows.append([Cell(look.title), name, unharmed, *cells])
        if not series:
            rows.append([Cell(look.title), NOTHING, unharmed])
    columns = ["model", "attack", "no attack", *(f"{norm} {eps:.4g}" for norm, eps in balls)]
    return Table(name="headline", caption=_caption(used, worst, series), columns=columns, rows=rows)


def accuracy_cell(record: Record, strong: bool = False) -> Cell:
    """An accuracy with its interval; the worst case of an older audit as a range."""
    low, high = record.interval
    if strong and (most := at_most(record)) is not None:
        note = f"to {percent(most.accuracy)} {percent_range(low, most.interval[1])}"
        return Cell(percent(record.accuracy), note, strong=strong)
    return Cell(percent(record.accuracy), percent_range(low, high), strong=strong)


def _caption(used: Sequence[Record], worst: Records, series: Sequence[Series]) -> str:
    parts = [f"Accuracy in % and its 95 % interval. {images_of(used)}; {samples_of(used)}."]
    attacks = [one.title for one in series if not one.worst]
    parts += [f"Attacks: {'; '.join(attacks)}."] if attacks else []
    if worst:
        levels = ", ".join(dict.fromkeys(r.name for r in worst))
        parts.append(f"{WORST[0].upper()}{WORST[1:]}: {levels} audit of {images_of(list(worst))}.")
    return " ".join(parts)


def _everything(measured: Sequence[Record], looks: Mapping[str, Look], titles: Titles) -> Table:
    rows = []
    for r in sorted(measured, key=lambda r: list(looks).index(r.model.label)):
        first = map(Cell, (looks[r.model.label].title, titles.of(r.name, r.attack), r.ball_title))
        samples = f"all {r.samples} members" if r.exact else f"{r.samples}"
        last = map(Cell, (percent_range(r.spread.min, r.spread.max), samples, f"{r.n:,}"))
        rows.append([*first, accuracy_cell(r), *last])
    columns = ["model", "attack", "radius", "accuracy, %", "over the seeds, %", "weight samples", "images"]
    return Table(name="accuracies", caption="Every accuracy that was measured.", columns=columns, rows=rows)
