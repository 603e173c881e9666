"""Records: what was measured, on which model and images, with which settings and uncertainty."""

import json
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from advbnn.attacks.identity import json_value
from advbnn.attacks.threat import Threat
from advbnn.display import notebook
from advbnn.errors import ArgumentError, FileError, one_of
from advbnn.evaluation.identity import DataIdentity, ModelIdentity
from advbnn.evaluation.intervals import accuracy_interval, draws_variance
from advbnn.evaluation.outcomes import unpack
from advbnn.machine.files import csv_text, locked_file, read_text, write_atomically

SCHEMA = 2

_SHA256 = re.compile(r"[0-9a-f]{64}")
ELSEWHERE = (
    "Write the new one to another file (--out, out=), give it another name or label, or replace the old one "
    "(--overwrite, overwrite=True)"
)


@dataclass(frozen=True)
class Spread:
    """Variation of a number over the evaluation seeds; the standard deviation of a single seed is 0."""

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
class Plan:
    """All settings that decide the result of one measurement, and nothing else.

    Attributes:
        kind: what is measured, such as `"clean"` or `"attack"`.
        name: the name of the attack or the measurement in tables.
        attack: the settings of the attack, see `settings_of`; None without an attack.
        source: the network that the attack was crafted on, if it is not the evaluated one.
        against: a second set of images that the first is compared with.
        samples: S, the number of weight samples of the classifier.
        exact: whether the classifier is the exact mean over its `samples` members instead.
        rule: how their outputs become a label, see `predict`.
        seeds: the evaluation seeds. Each has its own randomness of the attack and its own S weight samples.
        batch_size: images attacked at a time; random starts depend on it.
        curve: what varies along the curve that this is a point of, such as `"radius"`; empty if it is not on a curve.
        at: the position on that curve.
    """

    kind: str
    name: str
    model: ModelIdentity
    data: DataIdentity
    attack: Mapping[str, Any] | None = None
    threat: Threat | None = None
    source: ModelIdentity | None = None
    against: DataIdentity | None = None
    samples: int
    exact: bool = False
    rule: str = "probability"
    seeds: tuple[int, ...]
    batch_size: int
    precision: str
    curve: str = ""
    at: float | None = None

    @property
    def n(self) -> int:
        """The number of images."""
        return self.data.n

    @property
    def radius(self) -> float:
        """The radius of the threat; 0 without one."""
        return 0.0 if self.threat is None else self.threat.eps

    @property
    def ball_title(self) -> str:
        """`"linf 0.035"`: norm and radius of the threat; empty without one."""
        return "" if self.threat is None else f"{self.threat.norm} {self.threat.eps:.4g}"

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifies a record in a collection: label, kind, name, norm and radius, and position on a curve."""
        ball = None if self.threat is None else (self.threat.norm, self.threat.eps)
        return (self.model.label, self.kind, self.name, ball, self.curve, self.at)

    @property
    def title(self) -> str:
        """The key in words."""
        ball = f" ({self.ball_title})" if self.ball_title else ""
        place = f" at {self.curve} {self.at:g}" if self.curve and self.at is not None else ""
        return f"'{self.name}'{ball}{place} of {self.model.label}"

    def settings(self) -> dict[str, Any]:
        """All settings, flat and as JSON values."""
        return dict(_flat({f.name: _json(getattr(self, f.name)) for f in fields(Plan)}))


@dataclass(frozen=True, kw_only=True, repr=False)
class Record(Plan):
    """One measurement: its settings, and the result.

    Attributes:
        correct: the number of images classified correctly by each ensemble, the same number of ensembles for each
            seed, one after the other; empty if accuracy was not measured.
        outcomes: for each seed, how many of its ensembles classify each image correctly, as `outcomes.pack` writes it;
            empty if only counted.
        details: further results, as JSON values.
        seconds: the time that it took, of all processes together.
        command: the command that makes this record again, if there is one.
    """

    correct: tuple[int, ...] = ()
    outcomes: tuple[str, ...] = field(default=(), repr=False)
    details: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ArgumentError(f"{self.name}: seeds must hold one seed or more, got none")
        if len(self.correct) % len(self.seeds) or not all(0 <= k <= self.n for k in self.correct):
            expected = f"as many counts in 0..{self.n} for each of {len(self.seeds)} seeds"
            raise ArgumentError(f"{self.name}: correct must hold {expected}, got {self.correct}")
        if self.outcomes and [int(counts.sum()) for counts in self._counts] != list(map(sum, self._by_seed)):
            raise ArgumentError(f"{self.name}: outcomes do not have the counts of correct={self.correct}")

    @classmethod
    def of(cls, plan: Plan, **results: Any) -> "Record":
        """The record of a finished plan."""
        return cls(**{f.name: getattr(plan, f.name) for f in fields(Plan)}, **results)

    @property
    def ensembles(self) -> int:
        """R, the number of independent ensembles that scored the images under each seed."""
        return len(self.correct) // len(self.seeds)

    @cached_property
    def spread(self) -> Spread:
        """The accuracy over seeds and ensembles: its variation due to the randomness of classifier and attack."""
        if not self.correct:
            raise ArgumentError(f"{self.name} ({self.kind}) has no accuracy; its results are {', '.join(self.details)}")
        return Spread.of(self.correct, unit=self.n)

    @property
    def accuracy(self) -> float:
        """The share of images classified correctly, the mean over seeds and ensembles."""
        return self.spread.mean

    @property
    def right(self) -> Tensor:
        """The share of seeds and ensembles that classify each image correctly, [n]; see `paired_interval`."""
        if not self.outcomes:
            raise ArgumentError(f"{self.name} ({self.kind}) does not say which images were right; measure it again")
        return torch.stack(self._counts).double().mean(0) / self.ensembles

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy over images, and over draws if there are several ensembles."""
        return accuracy_interval(self.correct, self.n, draws=draws_variance(self._by_seed, self.n))

    @property
    def _by_seed(self) -> list[tuple[int, ...]]:
        return [self.correct[k : k + self.ensembles] for k in range(0, len(self.correct), self.ensembles or 1)]

    @property
    def _counts(self) -> list[Tensor]:
        return [unpack(one, self.n, self.ensembles) for one in self.outcomes]

    def __repr__(self) -> str:
        return f"Record({self.title}: {self._result}, {self.n:,} images of {self.data.name})"

    @property
    def _result(self) -> str:
        """The accuracy with its interval; without one, the names of the results."""
        if not self.correct:
            return ", ".join(self.details) or "no result"
        low, high = self.interval
        return f"{100 * self.accuracy:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"

    def to_dict(self) -> dict[str, Any]:
        """JSON values. Accuracy, interval and spread are included for readers; `from_dict` computes them again."""
        stored = {f.name: _json(getattr(self, f.name)) for f in fields(self)}
        if not self.outcomes:
            del stored["outcomes"]
        if self.correct:
            stored |= {"accuracy": self.accuracy, "interval": list(self.interval), "spread": asdict(self.spread)}
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Record":
        """The record that `to_dict` wrote."""
        values = {f.name: stored[f.name] for f in fields(cls) if f.name in stored}
        for name in ("model", "source", "data", "against"):
            identity: Any = ModelIdentity if name in ("model", "source") else DataIdentity
            values[name] = None if stored[name] is None else identity(**stored[name])
        if stored["threat"] is not None:
            norm, eps, (low, high) = (stored["threat"][name] for name in ("norm", "eps", "bounds"))
            values["threat"] = Threat(norm, float(eps), (float(low), float(high)))
        for name in ("seeds", "correct", "outcomes"):
            values[name] = tuple(stored.get(name, ()))
        values.setdefault("exact", "members" in stored["details"])  # older files say it there alone
        return cls(**values)


class Records(Sequence[Record]):
    """Records in order, with one record for each key."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._by_key: dict[tuple[Any, ...], Record] = {}
        for record in records:
            check_same_settings(self.find(record), record, "the collection")
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
        """These and the others; of two with the same key and settings the latter is kept."""
        return Records([*self, *others])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Records) else NotImplemented

    def __repr__(self) -> str:
        listed = [f"{record.title}: {record._result}" for record in self[: notebook.MOST_ROWS]]
        listed += [f"and {len(self) - len(listed):,} more"] if len(self) > len(listed) else []
        return "\n  ".join([f"Records of {len(self):,} measurement{'' if len(self) == 1 else 's'}", *listed])

    def _repr_html_(self) -> str:
        """The table that notebooks show."""
        columns = ("model", "measurement", "radius", "accuracy [95 % interval]", "images", "weight samples", "seeds")
        rows = (
            (
                r.model.label,
                f"{r.name} ({r.kind})" if r.kind == "worst_case" else r.name,
                r.ball_title,
                r._result,
                f"{r.n:,} of {r.data.name}",
                f"all {r.samples} members" if r.exact else r.samples,
                len(r.seeds),
            )
            for r in self
        )
        return notebook.table("Measured accuracies", columns, rows, len(self))

    def where(self, **wanted: Any) -> "Records":
        """The records with the given values: `records.where(kind="attack", label="adv_bnn")`.

        `label` is the label of the model, `eps` the radius of the threat; any other name is a field of `Record`.
        """
        return Records(r for r in self if all(_value(r, name) == value for name, value in wanted.items()))

    def only(self, **wanted: Any) -> Record:
        """The one record with the given values."""
        found = self.where(**wanted)
        if len(found) != 1:
            listed = "; ".join(record.title for record in self) or "nothing"
            raise ArgumentError(f"expected one record with {wanted}, found {len(found)}; there are: {listed}")
        return found[0]

    def find(self, like: Plan) -> Record | None:
        """The record with the key of `like`, if there is one."""
        return self._by_key.get(like.key)

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per record, all with the same columns, for tables; without outcomes."""
        flat = [dict(_flat(record.to_dict())) for record in self]
        columns = dict.fromkeys(name for row in flat for name in row if name != "outcomes")
        return [{name: row.get(name) for name in columns} for row in flat]

    def to_csv(self) -> str:
        """The rows as comma-separated text with a header."""
        return csv_text(self.rows())

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Add the records to a file, atomically; records with other keys stay.

        A record of the same key with other settings is refused, unless `overwrite` replaces it.

        Processes that save into one file at the same time wait for each other.
        """
        path = Path(path)
        with locked_file(path):
            kept = Records.load(path) if path.exists() else Records()
            kept = Records(record for record in kept if self.find(record) is None) if overwrite else kept
            for record in self:
                check_same_settings(kept.find(record), record, str(path))
            content = {"schema": SCHEMA, "records": [record.to_dict() for record in kept + self]}
            write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> "Records":
        """The records of a file."""
        if Path(path).exists() and not Path(path).is_file():
            raise ArgumentError(f"{path} is a folder or a device, not a file of records; give a file")
        try:
            content = json.loads(read_text(Path(path)))
            schema, stored = content["schema"], content["records"]
            records = cls(Record.from_dict(record) for record in stored) if schema == SCHEMA else cls()
        except FileError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ArgumentError(
                f"{path} is not a file of records, or is damaged (at {error}); restore it from a copy, or move it away "
                "and measure again"
            ) from error
        if schema != SCHEMA:
            raise ArgumentError(
                f"{path} has records of schema {schema}, this version of advbnn reads schema {SCHEMA}; measure them "
                "again, or read them with the version that wrote them"
            )
        return records


def check_same_settings(old: Plan | None, new: Plan, place: str, remedy: str = ELSEWHERE) -> None:
    """Refuse to replace a record by one with other settings."""
    if old is None:
        return
    before, now = old.settings(), new.settings()
    differing = [name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)]
    if not differing:
        return
    listed = ", ".join(f"{name} was {_shown(before, name)} and is now {_shown(now, name)}" for name in differing)
    what = f"{place} holds a finished record {new.title} that was made with other settings: {listed}"
    if "data.n" in differing and "data.sha256" not in differing:
        what += " (--limit, rows=)"
    if differing == ["model.sha256"]:
        what = f"{place} holds a finished record {new.title} of another network ({listed}): its weights have changed "
        what += "since then, or modes, hooks or attributes of its parts"
    raise ArgumentError(f"{what}. {remedy}")


def _shown(settings: Mapping[str, Any], name: str) -> str:
    """A setting in a message; of a SHA-256 the first eight digits."""
    value = settings.get(name)
    if name not in settings:
        return "not set"
    return repr(value[:8]) if isinstance(value, str) and _SHA256.fullmatch(value) else repr(value)


def _value(record: Record, name: str) -> Any:
    values = {"label": record.model.label, "eps": record.threat and record.threat.eps, **vars(record)}
    one_of("field", name, values)
    return values[name]


def _json(value: Any) -> Any:
    if isinstance(value, ModelIdentity | DataIdentity | Threat):
        # a field that came later, empty in all earlier records
        value = {name: inner for name, inner in asdict(value).items() if name != "source" or inner}
    return json_value(value)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", inner
