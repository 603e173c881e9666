"""The answer of a report in two or three sentences: the most robust model, how surely, and what one attack missed."""

from collections.abc import Mapping, Sequence

from advbnn.evaluation.audit.worst_case import WORST_CASE
from advbnn.evaluation.comparison import Comparison, comparison
from advbnn.evaluation.identity import row_list
from advbnn.evaluation.records import Record
from advbnn.report.audited import at_most
from advbnn.report.elements import percent
from advbnn.report.select import middle
from advbnn.report.series import Series
from advbnn.report.style import Look


def answer(series: Sequence[Series], clean: Mapping[str, Record], looks: Mapping[str, Look]) -> list[str]:
    """The sentences at the middle radius, about the worst case if there is one."""
    attacked = [one for one in series if one.balls]
    if not attacked:
        return []
    shown = attacked[-1]  # the worst case comes last
    threat = middle(shown.balls)
    at = [r for (_, place), r in shown.records.items() if place == threat]
    ranked = sorted(at, key=lambda r: -r.accuracy)
    sentences = [_best(ranked, shown, clean, looks)]
    if len(ranked) > 1:
        sentences.append(_difference(ranked[0], ranked[1], looks))
    if shown.worst:
        sentences += [words for one in series[:1] if (words := _missed(one, shown, looks))]
    return [" ".join(filter(None, sentences))]


def _best(ranked: Sequence[Record], shown: Series, clean: Mapping[str, Record], looks: Mapping[str, Look]) -> str:
    best, (low, high) = ranked[0], ranked[0].interval
    title = looks[best.model.label].title
    kind = "worst-case accuracy" if shown.worst else f"accuracy under {shown.title}"
    least = "at least " if _is_range(best) else ""
    where = best.ball_title
    numbers = f"{least}{percent(best.accuracy)} %{f' at {where}' if len(ranked) == 1 else ''}"
    numbers += f" (95 % interval {percent(low)} to {percent(high)} %)"
    if best.model.label in clean:
        numbers += f", and {percent(clean[best.model.label].accuracy)} % without attack"
    if len(ranked) == 1:
        return f"{title} has {'a' if shown.worst else 'an'} {kind} of {numbers}."
    second = ranked[1]
    return (
        f"{title} has the highest {kind} of {len(ranked)} models at {where}: {numbers}; "
        f"{looks[second.model.label].title} follows with {percent(second.accuracy)} %."
    )


def _difference(first: Record, second: Record, looks: Mapping[str, Look]) -> str:
    """Whether the two best differ, image by image if the records say which images were correct."""
    names = f"{looks[first.model.label].title} and {looks[second.model.label].title}"
    found = _paired(first, second)
    if found is None:
        overlap = second.interval[1] >= first.interval[0]
        return f"The intervals of {names} {'overlap' if overlap else 'do not overlap'}."
    if found.significant:
        return f"On the same {found.n:,} images the difference is {_points(found)}."
    return f"On the same {found.n:,} images {names} cannot be told apart: the difference is {_points(found)}."


def _missed(single: Series, worst: Series, looks: Mapping[str, Look]) -> str:
    """By how much a single attack overstates robustness at most, on the same images."""
    gaps = [
        (gap, ours)
        for place, ours in worst.records.items()
        if place in single.records and (gap := _gap(single.records[place], ours)) is not None
    ]
    if not gaps:
        return ""
    (before, after, interval), record = max(gaps, key=lambda one: one[0][0] - one[0][1])
    if before <= after:
        return ""
    return (
        f"Single attacks overstate robustness: under {single.title}, {looks[record.model.label].title} keeps "
        f"{percent(before)} % at {record.ball_title}; in the worst case {percent(after)} % of the same "
        f"{record.n:,} images, {100 * (before - after):.1f} points less{interval}."
    )


def _gap(single: Record, worst: Record) -> tuple[float, float, str] | None:
    """The accuracy under a single attack and in the worst case, on the images of the latter, and their interval."""
    most = at_most(worst) or worst  # not the certain part alone
    if (found := _paired(single, worst)) is not None and found.n == worst.n:
        low, high = (100 * end for end in found.interval)
        return *found.accuracies, f" (95 % interval {low:.1f} to {high:.1f})"
    ours, theirs = row_list(worst.data), row_list(single.data)
    if ours == theirs:
        return single.accuracy, most.accuracy, ""
    if single.outcomes and set(ours) <= set(theirs):
        places = {row: place for place, row in enumerate(theirs)}
        return single.right[[places[row] for row in ours]].mean().item(), most.accuracy, ""
    return None


def _paired(first: Record, second: Record) -> Comparison | None:
    """The comparison image by image, where both records have the outcomes and neither is a range."""
    if not first.outcomes or not second.outcomes or _is_range(first) or _is_range(second):
        return None
    return comparison(first, second)


def _is_range(record: Record) -> bool:
    return record.kind == WORST_CASE and at_most(record) is not None


def _points(found: Comparison) -> str:
    low, high = (100 * end for end in found.interval)
    return f"{100 * found.difference:.1f} points (95 % interval {low:+.1f} to {high:+.1f})"
