"""Finds among records what a report shows: the attack, the radius and the data."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from advbnn.errors import ArgumentError
from advbnn.evaluation.accuracy import CLEAN
from advbnn.evaluation.records import Record, Records

T = TypeVar("T")


def clean_of(records: Records, label: str) -> Record | None:
    found = records.where(kind="clean", name=CLEAN, label=label, curve="")
    return found[0] if found else None


def labels_of(records: Iterable[Record]) -> list[str]:
    """The labels of the models, in order of appearance."""
    return list(dict.fromkeys(record.model.label for record in records))


def radius_words(eps: float) -> str:
    """`"8/255"` for what is a whole number of grey levels, up to six digits, and no round number; else a number."""
    levels, short = round(255 * eps), f"{eps:.4g}"
    return f"{levels}/255" if levels and abs(levels / 255 - eps) < 1e-6 and float(short) != eps else short


def ball(record: Record) -> tuple[str, float]:
    """Norm and radius, by which threats are sorted."""
    return ("", 0.0) if record.threat is None else (record.threat.norm, record.threat.eps)


def middle(values: Sequence[T]) -> T:
    """The middle one of sorted values; the lower of two."""
    return values[(len(values) - 1) // 2]


def condition(record: Record) -> str:
    """The attack and its radius: `"clean"`, `"pgd 20 at linf 0.035"`."""
    return record.name if record.threat is None else f"{record.name} at {record.ball_title}"


def images_of(records: Sequence[Record]) -> str:
    """The number of images and their data set: `"400 images of digits"`."""
    return f"{extent([r.n for r in records])} images of {records[0].data.name}"


def samples_of(records: Sequence[Record]) -> str:
    """How classifiers average, and the number of seeds: `"20 weight samples, all of 3 members, 3 seeds"`."""
    parts = []
    if sampled := [r.samples for r in records if not r.exact]:
        parts.append(f"{extent(sampled)} weight sample{'' if set(sampled) == {1} else 's'}")
    if exact := [r.samples for r in records if r.exact]:
        parts.append(f"all of {extent(exact)} member{'' if set(exact) == {1} else 's'}")
    seeds = [len(r.seeds) for r in records]
    return ", ".join([*parts, f"{extent(seeds)} seed{'' if set(seeds) == {1} else 's'}"])


def check_one_data_set(records: Records) -> None:
    """Refuses records that do not belong on one plot; local Lipschitz values of training and test images may differ."""
    groups: dict[str, dict[str, Record]] = {}
    for record in records:
        group = f"{record.kind} {record.name}" if record.kind == "lipschitz" else ""
        groups.setdefault(group, {})[f"{record.data.name} {record.data.sha256}"] = record
    for found in groups.values():
        if len(found) > 1:
            listed = "; ".join(f"{r.model.label}: {r.data.name} ({r.data.sha256[:8]})" for r in found.values())
            raise ArgumentError(f"records are of different data: {listed}. Make one report per data set")


def extent(values: Sequence[int]) -> str:
    """The smallest and the largest number: `"400 to 1,000"`, or one if they are equal."""
    return " to ".join(dict.fromkeys(f"{end:,}" for end in (min(values), max(values))))
