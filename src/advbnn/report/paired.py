"""Networks and the first of them on the same images: accuracies and differences, as a table and as a picture."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from advbnn.evaluation.comparison import Comparison, comparison
from advbnn.evaluation.records import Record, Records
from advbnn.report.audited import worst_cases
from advbnn.report.elements import NOTHING, Cell, Table, percent
from advbnn.report.plots import Line, Panel, with_differences_file
from advbnn.report.select import ball, clean_of, labels_of, radius_words
from advbnn.report.style import Look, looks

CLEAN, WORST, AUTOATTACK = "no attack", "worst case", "AutoAttack"

Column = tuple[str, tuple[str, float]]  # what was measured; norm and radius


def read_network(folder: Path, name: str) -> Records:
    """The records of one network, in `name.json`; for `name*` those of `name-seed1.json`, ... too, as one network."""
    file = folder / f"{name.removesuffix('*')}.json"
    others = sorted(folder.glob(f"{file.stem}-seed*.json")) if name.endswith("*") else []
    return over_seeds([Records.load(each) for each in (file, *others)])


def over_seeds(trainings: Sequence[Records]) -> Records:
    """Trainings with several seeds as one network, of what was measured of all: an image by the share that is right."""
    first, *others = ({record.key[1:]: record for record in records} for records in trainings)
    if not others:
        return trainings[0]
    alike = [[record, *(one[key] for one in others)] for key, record in first.items() if all(key in o for o in others)]
    return Records(
        replace(
            same[0],
            model=replace(same[0].model, label=f"{same[0].model.label}, {len(same)} seeds"),
            seeds=tuple(range(len(same) * len(same[0].seeds))),
            correct=tuple(count for record in same for count in record.correct),
            outcomes=tuple(text for record in same for text in record.outcomes),
        )
        for same in alike
    )


def paired_table(networks: Sequence[Records], radii: Sequence[float] = ()) -> Table:
    """One row per network: without an attack, in the worst case of its most thorough audit, and under AutoAttack.

    The columns are what was measured of the first network. Beside each other number is its difference from that, with
    the paired interval, of several seeds that of `paired_interval`. It is in bold where the interval is above zero.
    `radii` chooses some; all if there are none.
    """
    found = [_columns(records) for records in networks]
    shown = [0.0, *radii]
    columns = sorted(found[0], key=_order)
    columns = [(what, at) for what, at in columns if not radii or any(math.isclose(at[1], eps) for eps in shown)]
    rows = [
        [Cell(_label(records)), *(_cell(one.get(column), found[0].get(column)) for column in columns)]
        for records, one in zip(networks, found, strict=True)
    ]
    titles = [what if what == CLEAN else f"{what}, {radius_words(at[1])}" for what, at in columns]
    judged = [(column[0], one[column]) for one in found for column in columns if column in one]
    audits = sorted({f"{record.name} audit of {record.n:,} images" for what, record in judged if what == WORST})
    others = sorted({f"{what}: {record.n:,} images" for what, record in judged if what != WORST})
    counts = [f"{WORST.capitalize()}: {', '.join(audits)}"] if audits else []
    counts += [", ".join(others)] if others else []
    means = ", the mean over seeds where there are several" if any(len(r.seeds) > 1 for _, r in judged) else ""
    caption = (
        f"Accuracy in %{means}, and its difference from the first row with the 95 % paired interval over test images; "
        f"in bold where it is above zero. {'; '.join(counts)}."
    )
    return Table(name="paired", caption=caption, columns=["network", *titles], rows=rows)


def paired_png(
    path: Path,
    pairs: Sequence[Mapping[str, Records]],
    *,
    differences: str,
    trained_at: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """The worst case against the radius, and beside it the difference from the first network of each mapping.

    Each of `pairs` maps titles to the records of networks that are compared; they share a colour, and the first is
    dashed. `differences` is the title of the right side. `trained_at` marks the radius of training of
    each, by its title.
    """
    of_pairs = list(looks(next(iter(networks)) for networks in pairs).values())
    left, right = [], []
    for networks, shared in zip(pairs, of_pairs, strict=True):
        found = {title: _columns(records) for title, records in networks.items()}
        first = next(iter(found.values()))
        for title, one in found.items():
            look = replace(shared, title=title)
            places = sorted((column for column in one if column[0] != AUTOATTACK), key=lambda column: column[1])
            accuracies = [(column[1][1], one[column].accuracy, one[column].interval) for column in places]
            compared = [(column, _difference(one[column], first.get(column))) for column in places]
            points = [(column[1][1], pair.difference, pair.interval) for column, pair in compared if pair is not None]
            left.append(_line(look, accuracies, "dashed" if one is first else "solid"))
            if one is not first:
                right.append(_line(look, points))
    radii = zip(of_pairs, trained_at.items(), strict=False)
    marks = [Line(look=replace(look, title=title), x=[eps], style="place") for look, (title, eps) in radii]
    panels = (("Worst case; dotted: training radius" if marks else "Worst case", left), (differences, right))
    shown = (Panel(title=title, x_label="radius of the attack", lines=[*lines, *marks]) for title, lines in panels)
    with_differences_file(path, *shown)


def _columns(records: Records) -> dict[Column, Record]:
    label = _label(records)
    worst = {(WORST, ball(record)): record for record in worst_cases(records)}
    clean = clean_of(records, label)
    judged = (record for record in records.where(kind="attack") if record.name.startswith(AUTOATTACK))
    found: dict[Column, Record] = {} if clean is None else {(CLEAN, ("", 0.0)): clean}
    return found | worst | {(AUTOATTACK, ball(record)): record for record in judged}


def _order(column: Column) -> tuple[int, tuple[str, float]]:
    return (CLEAN, WORST, AUTOATTACK).index(column[0]), column[1]


def _label(records: Records) -> str:
    (label,) = labels_of(records)
    return label


def _difference(record: Record, first: Record | None) -> Comparison | None:
    if first is None or record is first or (record.kind, record.name) != (first.kind, first.name):
        return None
    return comparison(record, first) if record.outcomes and first.outcomes else None


def _cell(record: Record | None, first: Record | None) -> Cell:
    if record is None:
        return NOTHING
    pair = _difference(record, first)
    if pair is None:
        return Cell(percent(record.accuracy))
    low, high = (f"{100 * end:+.1f}" for end in pair.interval)
    ahead = pair.significant and pair.difference > 0
    return Cell(percent(record.accuracy), f"({100 * pair.difference:+.1f} [{low}, {high}])", strong=ahead)


def _line(look: Look, points: Sequence[tuple[float, float, tuple[float, float]]], style: str = "solid") -> Line:
    ends = [[100 * interval[side] for _, _, interval in points] for side in (0, 1)]
    y = [100 * value for _, value, _ in points]
    return Line(look=look, x=[place for place, _, _ in points], y=y, low=ends[0], high=ends[1], style=style)
