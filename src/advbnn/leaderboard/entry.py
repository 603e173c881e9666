"""One entry of the leaderboard: a defence, what its source claims, and what was measured.

All accuracies are shares in [0, 1]. An entry is one JSON file, named by its `id`; fields that hold their default may be
left out.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advbnn.errors import ArgumentError, one_of, shown, unknown
from advbnn.leaderboard.schema import read, write
from advbnn.machine.files import read_json, write_atomically
from advbnn.names import AUDIT_LEVELS, NORMS

SCHEMA = 1
CLAIMED, REPRODUCED, AUDITED = "claimed", "reproduced", "weights audited"
STATUSES = (CLAIMED, REPRODUCED, AUDITED)
"""What the source says; a network that we trained; the weights of the authors."""

KINDS = ("trained", "post hoc", "no randomness")
"""Randomness that the network is trained with; put onto a trained network; none, for baselines."""
POINTS = "points"
"""The level of a worst case at given points."""

SAME_RADIUS = 0.05
"""The relative difference of radii up to which a claim is compared: sources write 0.03 and 0.031 for 8/255."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """An accuracy that a source states; `norm` and `eps` of its attack, without a radius if it minimises distance."""

    attack: str
    accuracy: float
    where: str
    clean: float | None = None
    architecture: str = ""
    norm: str = "linf"
    eps: float | None = None

    def __post_init__(self) -> None:
        _share("accuracy", self.accuracy)
        if self.clean is not None:
            _share("clean", self.clean)
        one_of("norm", self.norm, NORMS)


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """A measured accuracy on `n` images with its 95 % interval."""

    accuracy: float
    interval: tuple[float, float]
    n: int

    def __post_init__(self) -> None:
        _share("accuracy", self.accuracy)
        low, high = self.interval
        if not 0 <= low <= self.accuracy <= high <= 1:
            raise ArgumentError(
                f"interval: expected [low, high] around accuracy={self.accuracy:g}, got {list(self.interval)}; measure "
                "it again"
            )
        if self.n < 1:
            raise ArgumentError(f"n: expected a positive number of images, got {self.n}")


@dataclass(frozen=True, kw_only=True)
class Attacked(Accuracy):
    """The accuracy under one attack, with its settings.

    It ran `on` `"all"` images or on `"survivors"`; `"its own count"` is scored otherwise, and not comparable.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    on: str = "all"


@dataclass(frozen=True, kw_only=True)
class WorstCase(Accuracy):
    """The accuracy at the worst points found, and the shares that are certain and inconclusive for the infinite
    ensemble; see `advbnn.evaluation.audit`."""

    level: str
    certain: float | None = None
    inconclusive: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("level", self.level, (*AUDIT_LEVELS, POINTS))


@dataclass(frozen=True, kw_only=True)
class Eot(Accuracy):
    """The accuracy under PGD with gradients averaged over `eot` samples."""

    eot: int


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag of the audit that was raised, and its evidence."""

    name: str
    title: str
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The worst-case accuracy minus that of the baseline on the same images, with its paired 95 % interval."""

    difference: float
    interval: tuple[float, float]
    n: int

    def __post_init__(self) -> None:
        if not -1 <= self.interval[0] <= self.interval[1] <= 1:
            raise ArgumentError(f"interval: expected [low, high] in [-1, 1], got {list(self.interval)}")


@dataclass(frozen=True, kw_only=True)
class Threat:
    norm: str
    eps: float

    def __post_init__(self) -> None:
        one_of("norm", self.norm, NORMS)
        if not self.eps > 0:
            raise ArgumentError(f"eps: expected a positive radius such as 0.0314, got {self.eps:g}")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What training took."""

    epochs: int
    seconds: float | None = None
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A defence on the leaderboard.

    Args:
        id: the name of its file.
        kind: one of `KINDS`.
        random: what is random; `redrawn` when it is drawn anew, `shared` whether the images of a batch share a draw.
        samples: forward passes that the deployed classifier averages; `rule` how they become a label.
        own_protocol: the accuracy under the evaluation of the source, on our network.
        attacks: every attack of the audit, and others.
        plateau: the accuracy over EOT samples, in ascending order; `flat` whether the last step changed little.
        known_seed: the accuracy if the attacker knows the random numbers of the classifier.
        mean_weights: the accuracy of the mean network without randomness, under PGD.
        baseline: the id of the entry without randomness that it is compared with.
        weights_sha256: the digest of the evaluated network.
        commit: of the software, with the `command` that makes the numbers again.
        notes: where this network differs from its source.
    """

    id: str
    name: str
    paper: str
    kind: str
    architecture: str
    dataset: str
    threat: Threat
    random: str
    redrawn: str
    status: str
    schema: int = SCHEMA
    venue: str = ""
    code: str = ""
    shared: bool | None = None
    samples: int | None = None
    rule: str = "probability"
    claims: tuple[Claim, ...] = ()
    clean: Accuracy | None = None
    own_protocol: Attacked | None = None
    attacks: tuple[Attacked, ...] = ()
    worst_case: WorstCase | None = None
    plateau: tuple[Eot, ...] = ()
    flat: bool | None = None
    known_seed: Accuracy | None = None
    mean_weights: Accuracy | None = None
    flags: tuple[Flag, ...] = ()
    baseline: str = ""
    difference: Difference | None = None
    cost: Cost | None = None
    weights_sha256: str = ""
    commit: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ArgumentError(f"schema: expected {SCHEMA}, got {self.schema}; make the entry with this version")
        if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", self.id):
            raise ArgumentError(f"id: expected lower-case letters, digits, '-', '_' and '.', got {shown(self.id)}")
        for name in ("name", "paper", "architecture", "dataset", "random", "redrawn"):
            if not getattr(self, name).strip():
                raise ArgumentError(f"{name}: expected text, got nothing; say 'none' where there is none")
        if self.code and not re.match(r"https?://", self.code):
            raise ArgumentError(f"code: expected an address that begins with https://, got {shown(self.code)}")
        one_of("kind", self.kind, KINDS)
        one_of("status", self.status, STATUSES)
        self._check_claimed() if self.status == CLAIMED else self._check_measured()

    @property
    def claimed(self) -> Claim | None:
        """The first claim at this threat; None without any. Entries begin with that of the variant they describe."""
        same = [claim for claim in self.claims if claim.norm == self.threat.norm and claim.eps is not None]
        near = [c for c in same if abs((c.eps or 0) - self.threat.eps) <= SAME_RADIUS * self.threat.eps]
        return near[0] if near else None

    def _check_claimed(self) -> None:
        if not self.claims:
            raise ArgumentError("claims: expected at least one for status 'claimed', got none; add where it is stated")
        for name in ("clean", "own_protocol", "worst_case", "known_seed", "mean_weights", "difference"):
            if getattr(self, name) is not None:
                raise ArgumentError(f"{name}: status 'claimed' holds no measurement; change status to 'reproduced'")

    def _check_measured(self) -> None:
        for name in ("clean", "worst_case", "samples", "weights_sha256", "commit", "command"):
            if not getattr(self, name):
                raise ArgumentError(f"{name}: expected a value for status {self.status!r}, got none; measure it")
        if not re.fullmatch("[0-9a-f]{64}", self.weights_sha256):
            raise ArgumentError(f"weights_sha256: expected 64 hexadecimal digits, got {shown(self.weights_sha256)}")
        if self.worst_case is None or self.clean is None:
            return
        others = {f"attack {attack.name!r}": attack for attack in self.attacks if attack.on == "all"}
        for name, other in {"clean accuracy": self.clean, **others}.items():
            low, high = self.worst_case.interval[0], other.interval[1]
            if low > high:  # one draw of a random network may be below the mean over many
                raise ArgumentError(
                    f"worst_case.interval: begins at {low:.4g}, expected at most {high:.4g}, the upper end of the "
                    f"{name}; audit again with its points"
                )
        if self.difference is not None and not self.baseline:
            raise ArgumentError("baseline: expected the id of an entry, as there is a difference; add it")


def load(path: Path | str) -> Entry:
    """The entry of a file; an error names the file and the field."""
    path = Path(path)
    table = read_json(path)
    if isinstance(table, dict) and "records" in table and "id" not in table:
        remedy = "make one with advbnn leaderboard entry, and keep entries in a folder of their own"
        raise ArgumentError(f"{path} holds records of measurements and is no entry; {remedy}")
    try:
        entry = read(Entry, table)
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from None
    if entry.id != path.stem:
        raise ArgumentError(f"{path}: id: expected {path.stem!r}, the name of the file, got {entry.id!r}; rename one")
    return entry


def load_all(folder: Path | str) -> list[Entry]:
    """The entries of a folder, in the order of their ids; baselines must be among them."""
    folder = Path(folder)
    entries = [load(path) for path in sorted(folder.glob("*.json"))]
    if not entries:
        raise ArgumentError(f"{folder} holds no entries (*.json); give the folder of the leaderboard")
    check_baselines(entries, folder)
    return entries


def load_with_baseline(path: Path | str) -> Entry:
    """The entry of a file, checked against its baseline, which must lie beside it."""
    entry = load(path)
    if entry.baseline:
        beside = Path(path).with_name(f"{entry.baseline}.json")
        if not beside.is_file():
            raise ArgumentError(f"{path}: baseline: expected its entry beside it, {beside}, found none; make it, too")
        check_baselines([entry, load(beside)], path)
    return entry


def check_baselines(entries: Iterable[Entry], place: Path | str) -> None:
    """Refuses a baseline that is missing, random, or of other data or another threat, and a difference from another."""
    by_id = {entry.id: entry for entry in entries}
    for entry in by_id.values():
        if entry.baseline and entry.baseline not in by_id:
            raise ArgumentError(f"{place}: {entry.id}: {unknown('baseline', entry.baseline, by_id)}")
        if entry.baseline:
            try:
                _check_baseline(entry, by_id[entry.baseline])
            except ArgumentError as error:
                raise ArgumentError(f"{place}: {entry.id}: {error}") from None


def _check_baseline(entry: Entry, base: Entry) -> None:
    if base.kind != KINDS[2]:
        raise ArgumentError(f"baseline: expected an entry of kind {KINDS[2]!r}, got {base.id} of kind {base.kind!r}")
    if (base.dataset, base.threat) != (entry.dataset, entry.threat):
        threat = f"{entry.dataset}, {entry.threat.norm} {entry.threat.eps:.4g}"
        raise ArgumentError(f"baseline: {base.id} has other data or another threat; choose one with {threat}")
    if entry.difference is None:
        return
    worst, other, remedy = entry.worst_case, base.worst_case, "make the entry again with the records of both audits"
    if worst is None or other is None or (worst.level, worst.n) != (other.level, other.n):
        raise ArgumentError(f"difference: {base.id} was not audited at this level on so many images; {remedy}")
    expected = worst.accuracy - other.accuracy
    if abs(entry.difference.difference - expected) > 1e-5:  # of numbers with six digits
        came = f"{entry.difference.difference:+.6f}"
        raise ArgumentError(
            f"difference: expected {expected:+.6f} to the worst case of {base.id}, got {came}; {remedy}"
        )


def to_json(entry: Entry) -> str:
    table = {"schema": SCHEMA, **write(entry)}
    return json.dumps(table, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def save(entry: Entry, path: Path | str) -> None:
    """Write the file of an entry, which must have its id as name."""
    path = Path(path)
    if path.stem != entry.id or path.suffix != ".json":
        raise ArgumentError(f"{path}: an entry is stored as {entry.id}.json; rename the file, or change id")
    write_atomically(path, to_json(entry).encode())


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ArgumentError(f"{name}: expected a share in [0, 1], got {value:g}; divide percent by 100")
