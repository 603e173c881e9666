"""What the headline table says, in two sentences."""

from collections.abc import Mapping, Sequence

from advbnn.evaluation.records import Record
from advbnn.report.select import ball, ball_title, middle
from advbnn.report.style import Look
from advbnn.report.tables import percent


def in_short(authors: Sequence[Record], worst: Sequence[Record], looks: Mapping[str, Look]) -> list[str]:
    """Who is ahead in the worst case, and by how much the authors' attack overstates; nothing without a worst case.

    Args:
        authors: records of the authors' attack.
        worst: records of the worst case.
        looks: of the models.
    """
    if not worst:
        return []
    gap = _largest_gap(authors, worst)
    return [" ".join([_ranking(worst, looks), *([_overstated(*gap, looks)] if gap else [])])]


def _ranking(worst: Sequence[Record], looks: Mapping[str, Look]) -> str:
    """The two best at the radius in the middle."""
    threat = middle(sorted({ball(record) for record in worst}))
    ranked = sorted((r for r in worst if ball(r) == threat), key=lambda r: -r.accuracy)
    best, low, high = ranked[0], *ranked[0].interval
    sentence = (
        f"At {ball_title(best)} {looks[best.model.label].title} keeps {percent(best.accuracy)} % of the images in the "
        f"worst case (95 % interval {percent(low)} to {percent(high)} %)"
    )
    if len(ranked) > 1:
        second = ranked[1]
        sentence += f"; next is {looks[second.model.label].title} with {percent(second.accuracy)} %"
        if second.interval[1] > low:
            sentence += ", and the intervals of the two overlap"
    return f"{sentence}."


def _overstated(authors: Record, worst: Record, looks: Mapping[str, Look]) -> str:
    return (
        f"The authors' attack overstates robustness by up to {100 * (authors.accuracy - worst.accuracy):.1f} points: "
        f"at {ball_title(worst)} {looks[worst.model.label].title} keeps {percent(authors.accuracy)} % under it, and "
        f"{percent(worst.accuracy)} % in the worst case."
    )


def _largest_gap(authors: Sequence[Record], worst: Sequence[Record]) -> tuple[Record, Record] | None:
    """The authors' attack and the worst case, of the same model and threat, where they are furthest apart."""
    under = {(r.model.label, r.threat): r for r in authors}
    pairs = [(under[r.model.label, r.threat], r) for r in worst if (r.model.label, r.threat) in under]
    apart = [(one, other) for one, other in pairs if one.accuracy > other.accuracy]
    return max(apart, key=lambda pair: pair[0].accuracy - pair[1].accuracy, default=None)
