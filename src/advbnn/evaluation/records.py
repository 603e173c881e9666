"""Records: what was measured, of which model, on which images, how, and with what certainty."""

import csv
import io
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from advbnn.attacks.threat import Threat
from advbnn.errors import ArgumentError, unknown
from advbnn.evaluation.identity import DataIdentity, ModelIdentity
from advbnn.evaluation.intervals import accuracy_interval
from advbnn.evaluation.outcomes import unpack
from advbnn.files import read_text, write_atomically

SCHEMA = 1

_RESULTS = ("correct", "outcomes", "details", "seconds", "versions", "command")
"""The fields that do not say how a measurement is made but what came of it."""


@dataclass(frozen=True)
class Spread:
    """How much a number varies over the evaluation seeds; the standard deviation of a single one is 0."""

    mean: float
    sd: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float], unit: float = 1) -> "Spread":
        """The spread of at least one value, in multiples of `unit`."""
        sd = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values) / unit, sd / unit, min(values) / unit, max(values) / unit)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measurement.

    All its settings determine the result. Its key, by which it is found, are the label of the model, kind, name, norm
    and radius, and the place on a curve.

    Attributes:
        kind: what was measured, such as `"clean"` or `"attack"`.
        name: what the attack or the measurement is called in tables.
        model: the network that was judged.
        data: the images.
        attack: the attack's repr; empty if there was none.
        threat: what the attack was allowed to do.
        source: the network that the attack was made on, if not on the one that is judged.
        against: a second set of images that the first is compared with.
        samples: S, the draws of the network that make up the classifier.
        rule: how they become a label, see `predict`.
        seeds: the evaluation seeds. Each has its own randomness of the attack and its own S draws.
        batch_size: the images attacked at a time; random starts depend on it.
        precision: of the arithmetic.
        curve: what varies along the curve that this record is a point of, such as `"radius"`; empty if of none.
        at: the place on that curve.
        correct: the number of images classified correctly, for each seed; empty if accuracy was not asked about.
        outcomes: which images these are, for each seed, as `outcomes.pack` writes them; empty in records of earlier
            versions, which counted them only.
        details: further results, as JSON values.
        seconds: the time that it took, of all processes together.
        versions: of the software, and the device.
        command: what makes this record again, if there is such a command.
    """

    kind: str
    name: str
    model: ModelIdentity
    data: DataIdentity
    attack: str = ""
    threat: Threat | None = None
    source: ModelIdentity | None = None
    against: DataIdentity | None = None
    samples: int
    rule: str = "probability"
    seeds: tuple[int, ...]
    batch_size: int
    precision: str
    curve: str = ""
    at: float | None = None
    correct: tuple[int, ...] = ()
    outcomes: tuple[str, ...] = field(default=(), repr=False)
    details: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.correct and len(self.correct) != len(self.seeds):
            raise ArgumentError(f"{self.name}: {len(self.correct)} counts in correct for {len(self.seeds)} seeds")
        if self.correct and not 0 <= min(self.correct) <= max(self.correct) <= self.n:
            raise ArgumentError(
                f"{self.name}: correct must lie in 0..{self.n}, the number of images; got {self.correct}"
            )
        if self.outcomes and tuple(int(unpack(one, self.n).sum()) for one in self.outcomes) != self.correct:
            raise ArgumentError(f"{self.name}: outcomes are of other counts than correct={self.correct}; () has none")

    @property
    def n(self) -> int:
        """The number of images."""
        return self.data.n

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells this record from the others of a collection."""
        ball = None if self.threat is None else (self.threat.norm, self.threat.eps)
        return (self.model.label, self.kind, self.name, ball, self.curve, self.at)

    @cached_property
    def spread(self) -> Spread:
        """The accuracy over the evaluation seeds: what the randomness of classifier and attack makes of it."""
        if not self.correct:
            raise ArgumentError(f"{self.name} ({self.kind}) has no accuracy; its results are {', '.join(self.details)}")
        return Spread.of(self.correct, unit=self.n)

    @property
    def accuracy(self) -> float:
        """The share of images classified correctly, the mean over the seeds."""
        return self.spread.mean

    @property
    def right(self) -> Tensor:
        """How often each image was right, as the share of the seeds, [n]; `paired_interval` compares two of these."""
        if not self.outcomes:
            raise ArgumentError(f"{self.name} ({self.kind}) does not say which images were right; measure it anew")
        return torch.stack([unpack(one, self.n) for one in self.outcomes]).double().mean(0)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy that the choice of images leaves; see `accuracy_interval`."""
        return accuracy_interval(self.correct, self.n)

    def settings(self) -> dict[str, Any]:
        """All that determines the result, flat and as JSON values."""
        return {name: value for name, value in _flat(self._stored()) if name.partition(".")[0] not in _RESULTS}

    def to_dict(self) -> dict[str, Any]:
        """JSON values. Accuracy, interval and spread are there to be read; `from_dict` counts again."""
        derived: dict[str, Any] = {}
        if self.correct:
            derived = {"accuracy": self.accuracy, "interval": list(self.interval), "spread": asdict(self.spread)}
        return {**self._stored(), **derived}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Record":
        """The record that `to_dict` wrote."""
        values = {f.name: stored[f.name] for f in fields(cls) if f.name in stored}
        values["model"] = ModelIdentity(**stored["model"])
        values["data"] = DataIdentity(**stored["data"])
        for name, identity in (("source", ModelIdentity), ("against", DataIdentity)):
            if stored.get(name) is not None:
                values[name] = identity(**stored[name])
        if stored.get("threat") is not None:
            norm, eps, (low, high) = (stored["threat"][name] for name in ("norm", "eps", "bounds"))
            values["threat"] = Threat(norm, float(eps), (float(low), float(high)))
        for name in ("seeds", "correct"):
            values[name] = tuple(stored[name])
        values["outcomes"] = tuple(stored.get("outcomes", ()))
        return cls(**values)

    def _stored(self) -> dict[str, Any]:
        stored = {f.name: _json(getattr(self, f.name)) for f in fields(self)}
        return stored if self.outcomes else {name: value for name, value in stored.items() if name != "outcomes"}


class Records(Sequence[Record]):
    """Records in order, each with a key of its own."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._by_key: dict[tuple[Any, ...], Record] = {}
        for record in records:
            if differing := _differing(self._by_key.get(record.key), record):
                raise ArgumentError(
                    f"two records {_title(record)} were made with different settings: {differing}. Leave one of them "
                    "out, or give it another name or label"
                )
            self._by_key[record.key] = record

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> "Records": ...
    def __getitem__(self, index: int | slice) -> "Record | Records":
        found = list(self._by_key.values())[index]
        return found if isinstance(found, Record) else Records(found)

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._by_key.values())

    def __add__(self, others: Iterable[Record]) -> "Records":
        """These and the others; of two with the same key and settings the other stays."""
        return Records([*self, *others])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Records) else NotImplemented

    def __repr__(self) -> str:
        return f"Records({', '.join(_title(record) for record in self)})"

    def where(self, **wanted: Any) -> "Records":
        """The records with the given values: `records.where(kind="attack", label="adv_bnn")`.

        `label` is that of the model, `eps` that of the threat; any other name is a field of `Record`.
        """
        return Records(r for r in self if all(_value(r, name) == value for name, value in wanted.items()))

    def only(self, **wanted: Any) -> Record:
        """The one record with the given values."""
        found = self.where(**wanted)
        if len(found) != 1:
            listed = "; ".join(_title(record) for record in self) or "nothing"
            raise ArgumentError(f"expected one record with {wanted}, found {len(found)}; there are: {listed}")
        return found[0]

    def find(self, like: Record) -> Record | None:
        """The record with the key of `like`, if there is one."""
        return self._by_key.get(like.key)

    def rows(self) -> list[dict[str, Any]]:
        """One flat row a record, all with the same columns, for tables; outcomes are not for these."""
        flat = [{k: v for k, v in _flat(record.to_dict()) if k != "outcomes"} for record in self]
        columns = dict.fromkeys(name for row in flat for name in row)
        return [{name: row.get(name) for name in columns} for row in flat]

    def to_csv(self) -> str:
        """The rows as comma-separated text with a header."""
        rows = self.rows()
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def save(self, path: str | Path) -> None:
        """Adds the records to the file, which is replaced as a whole or not at all.

        Records with other keys stay in it. One that is in the file and was made with other settings is not
        overwritten: an error says what differs.
        """
        path = Path(path)
        kept = Records.load(path) if path.exists() else Records()
        for record in self:
            check_same_settings(kept.find(record), record, str(path))
        content = {"schema": SCHEMA, "records": [record.to_dict() for record in kept + self]}
        write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> "Records":
        """The records of a file."""
        try:
            content = json.loads(read_text(Path(path)))
        except ValueError as error:
            raise ArgumentError(
                f"{path} is not a file of records: {error}; `Records.save` writes such files"
            ) from error
        if not isinstance(content, dict) or not {"schema", "records"} <= content.keys():
            raise ArgumentError(
                f"{path} is not a file of records, which has a schema and records; `Records.save` writes such files"
            )
        schema, stored = content["schema"], content["records"]
        if schema != SCHEMA:
            raise ArgumentError(
                f"{path} has records of schema {schema}, expected {SCHEMA}; use a matching advbnn version"
            )
        try:
            return cls(Record.from_dict(record) for record in stored)
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"{path} holds a damaged record: {error}") from error


def check_same_settings(old: Record | None, new: Record, place: str) -> None:
    """Refuses to let `new` stand for a record that was made in another way."""
    if differing := _differing(old, new):
        raise ArgumentError(
            f"{place} holds a finished record {_title(new)} that was made with other settings: {differing}. "
            "Write the new one to another file (--out, out=), give it another name or label, or remove the old one"
        )


def _differing(old: Record | None, new: Record) -> str:
    """The settings that are not the same, in words; empty if all are."""
    if old is None:
        return ""
    before, now = old.settings(), new.settings()
    names = [name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)]
    return ", ".join(f"{name} was {before.get(name)!r} and is now {now.get(name)!r}" for name in names)


def _title(record: Record) -> str:
    ball = "" if record.threat is None else f" ({record.threat.norm} {record.threat.eps:.4g})"
    place = f" at {record.curve} {record.at:g}" if record.curve and record.at is not None else ""
    return f"'{record.name}'{ball}{place} of {record.model.label}"


def _value(record: Record, name: str) -> Any:
    if name == "label":
        return record.model.label
    if name == "eps":
        return None if record.threat is None else record.threat.eps
    if name not in {f.name for f in fields(record)}:
        raise unknown("field", name, ["label", "eps", *(f.name for f in fields(record))])
    return getattr(record, name)


def _json(value: Any) -> Any:
    if isinstance(value, ModelIdentity | DataIdentity | Threat):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {name: _json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return value


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", inner
