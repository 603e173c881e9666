"""Two models on the same images: the difference of their accuracies, with its paired interval."""

from collections.abc import Iterable
from dataclasses import dataclass

from advbnn.errors import ArgumentError
from advbnn.evaluation.identity import row_list
from advbnn.evaluation.intervals import paired_interval
from advbnn.evaluation.records import Record


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One measurement, such as `"pgd 20 at linf 0.1"`, of two models on the `n` images that both records have.

    `interval` is the 95 % interval of the first accuracy minus the second; see `paired_interval`.
    """

    what: str
    labels: tuple[str, str]
    accuracies: tuple[float, float]
    interval: tuple[float, float]
    n: int
    data: str
    classifiers: tuple[str, str] = ("", "")
    """How each was scored, where that differs: another rule, precision or number of weight samples."""

    @property
    def difference(self) -> float:
        """The first accuracy minus the second."""
        return self.accuracies[0] - self.accuracies[1]

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero."""
        return not self.interval[0] <= 0 <= self.interval[1]

    def __str__(self) -> str:
        first, second = self.labels
        low, high = (100 * end for end in self.interval)
        numbers = f"{100 * self.accuracies[0]:.1f} % and {100 * self.accuracies[1]:.1f} %"
        range_ = f"95 % interval {low:+.1f} to {high:+.1f} points"
        if not self.significant:
            return (
                f"{self.what}: {first} and {second} cannot be told apart on the same {self.n:,} images of {self.data}: "
                f"{numbers}, difference {100 * self.difference:+.1f} points, {range_}.{self._other}"
            )
        more = "more" if self.difference > 0 else "less"
        return (
            f"{self.what}: {first} has {abs(100 * self.difference):.1f} points {more} than {second} on the same "
            f"{self.n:,} images of {self.data}: {numbers}, {range_}.{self._other}"
        )

    @property
    def _other(self) -> str:
        first, second = self.classifiers
        return f" The classifiers differ in more than the network: {first}, and {second}." if first != second else ""


def compare(first: Iterable[Record], second: Iterable[Record]) -> list[Comparison]:
    """All measurements that both have: same kind, name, attack, threat and place on a curve, and common images.

    Each must hold the records of one model. Records without outcomes per image are left out.
    """
    ours, theirs = (_by_measurement(records) for records in (first, second))
    found = (comparison(ours[key], theirs[key]) for key in ours if key in theirs)
    # records of calibration and of detection hold the accuracy under the attack, too: one comparison says it
    return list(dict.fromkeys(one for one in found if one is not None))


def comparison(first: Record, second: Record) -> Comparison | None:
    """Two records of one measurement; None if they have no image in common."""
    if first.data.sha256 != second.data.sha256:
        return None
    rows = [row_list(record.data) for record in (first, second)]
    places = [{row: place for place, row in enumerate(of_one)} for of_one in rows]
    common = [row for row in rows[0] if row in places[1]]
    if not common:
        return None
    # an exact mean is compared with samples, and an audit has one pass of a network that is not random
    single = first.kind == "worst_case" and 1 in (first.samples, second.samples)
    counted = not (first.exact or second.exact or single)
    pairs = zip((first, second), places, strict=True)
    ours, theirs = (record.right[[of[row] for row in common]] for record, of in pairs)
    return Comparison(
        what=_title(first),
        labels=(first.model.label, second.model.label),
        accuracies=(ours.mean().item(), theirs.mean().item()),
        interval=paired_interval(ours, theirs),
        n=len(common),
        data=first.data.name,
        classifiers=(_classifier(first, counted), _classifier(second, counted)),
    )


def _classifier(record: Record, counted: bool) -> str:
    precision = record.precision.partition(", gradients")[0].partition(", TF32")[0]
    count = f"{record.samples} weight samples, " if counted else ""
    return f"{count}rule {record.rule}, {precision}"


def _by_measurement(records: Iterable[Record]) -> dict[str, Record]:
    """The records that say which images were right, by what was measured."""
    kept = [record for record in records if record.outcomes and record.source is None and record.against is None]
    labels = list(dict.fromkeys(record.model.label for record in kept))
    if len(labels) > 1:
        raise ArgumentError(f"records must be of one model, got {', '.join(labels)}; keep those with one label")
    return {str((record.key[1:], _attack(record))): record for record in kept}


def _attack(record: Record) -> object:
    """What must be equal beside the key: all settings of an attack; of an audit, its level."""
    attack = record.attack or {}
    return attack.get("level") if record.kind == "worst_case" else record.attack


def _title(record: Record) -> str:
    name = f"worst case ({record.name})" if record.kind == "worst_case" else record.name
    ball = f" at {record.ball_title}" if record.threat else ""
    place = "" if record.at is None or record.curve == "radius" else f", {record.curve} {record.at:g}"
    return name + ball + place
