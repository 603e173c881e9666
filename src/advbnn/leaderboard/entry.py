"""One entry of the leaderboard: a defence, what its source claims, and what was measured.

All accuracies are shares in [0, 1]. An entry is one JSON file, named by its `id`; fields that hold their default may be
left out.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from advbnn.errors import MOST_EXAMPLES, ArgumentError, did_you_mean, one_of, positive_whole, whole, within
from advbnn.leaderboard.schema import Checked, matching, read, write
from advbnn.machine.files import read_json, write_atomically
from advbnn.names import AUDIT_LEVELS, NORMS, RULES

SCHEMA = 1
CLAIMED, REPRODUCED, AUDITED = "claimed", "reproduced", "weights audited"
STATUSES = (CLAIMED, REPRODUCED, AUDITED)
"""What the source says; a network that we trained; the weights of the authors."""

KINDS = ("trained", "post hoc", "no randomness")
"""Randomness that the network is trained with; put onto a trained network; none, for baselines."""
POINTS = "points"
"""The level of a worst case at given points."""

ALL, SURVIVORS, OWN_COUNT = "all", "survivors", "its own count"
"""What the share of an attack is of: all images; those that the attacks before it left; scored by the attack's own
rule, and not comparable."""

SAME_RADIUS = 0.05
"""The relative difference of radii up to which a claim is compared: sources write 0.03 and 0.031 for 8/255."""

Share = Annotated[float, partial(within, interval="[0, 1]", remedy="divide percent by 100")]
Change = Annotated[float, partial(within, interval="[-1, 1]", remedy="divide points by 100")]
Radius = Annotated[float, partial(within, interval="(0, 1e30]", remedy="8/255 is 0.031373")]
Count = Annotated[int, positive_whole]
Images = Annotated[int, partial(positive_whole, most=MOST_EXAMPLES)]
Text = Annotated[str, matching(r".*\S.*", "text; say 'none' where there is none")]
Norm = Annotated[str, partial(one_of, options=NORMS)]
Id = Annotated[str, matching(r"[a-z0-9][a-z0-9_.-]*", "lower-case letters, digits, '-', '_' and '.'")]
Address = Annotated[str, matching(r"(https?://\S+)?", "an address that begins with https://")]
Kind = Annotated[str, partial(one_of, options=KINDS)]
Status = Annotated[str, partial(one_of, options=STATUSES)]
Digest = Annotated[str, matching("([0-9a-f]{64})?", "64 hexadecimal digits")]
Commit = Annotated[str, matching(r"([0-9a-f]{7,64}|advbnn \S+)?", "a commit of git, or 'advbnn VERSION'")]
"""The ranges of the fields below."""


def _this_schema(name: str, value: int) -> None:
    if value != SCHEMA:
        raise ArgumentError(f"{name}: expected {SCHEMA}, got {value}; make the entry with this version")


@dataclass(frozen=True, kw_only=True)
class Claim(Checked):
    """An accuracy that a source states; `norm` and `eps` of its attack, without a radius if it minimises distance.

    If others than the authors measured it, `where` begins with them: `"by NAME, table 1"`.
    """

    attack: Text
    accuracy: Share
    where: Text
    clean: Share | None = None
    architecture: str = ""
    norm: Norm = "linf"
    eps: Radius | None = None

    @property
    def by(self) -> str:
        """Who measured it, if not the authors; else empty."""
        found = re.match(r"by ([^,;]+)", self.where)
        return found[1] if found else ""


@dataclass(frozen=True, kw_only=True)
class Accuracy(Checked):
    """A measured accuracy on `n` images with its 95 % interval."""

    accuracy: Share
    interval: tuple[Share, Share]
    n: Images

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_around(self.interval, "accuracy", self.accuracy)


@dataclass(frozen=True, kw_only=True)
class Attacked(Accuracy):
    """The accuracy under one attack, as a share of what it ran `on`, with those settings that are not its defaults."""

    name: Text
    settings: Mapping[str, Any] = field(default_factory=dict)
    on: Annotated[str, partial(one_of, options=(ALL, SURVIVORS, OWN_COUNT))] = ALL


@dataclass(frozen=True, kw_only=True)
class WorstCase(Accuracy):
    """The accuracy at the worst points found, and the shares that are certain and inconclusive for the infinite
    ensemble; see `advbnn.evaluation.audit`."""

    level: Annotated[str, partial(one_of, options=(*AUDIT_LEVELS, POINTS))]
    certain: Share | None = None
    inconclusive: Share | None = None


@dataclass(frozen=True, kw_only=True)
class Eot(Accuracy):
    """The accuracy under PGD with gradients averaged over `eot` samples."""

    eot: Count


@dataclass(frozen=True, kw_only=True)
class Flag(Checked):
    """A flag of the audit that was raised, and its evidence."""

    name: Text
    title: Text
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Difference(Checked):
    """The worst-case accuracy minus that of the baseline on the same images, with its paired 95 % interval."""

    difference: Change
    interval: tuple[Change, Change]
    n: Images

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_around(self.interval, "difference", self.difference)


@dataclass(frozen=True, kw_only=True)
class Threat(Checked):
    norm: Norm
    eps: Radius


@dataclass(frozen=True, kw_only=True)
class Cost(Checked):
    """What training took."""

    epochs: Annotated[int, partial(whole, least=0)]
    seconds: Annotated[float, partial(within, interval="[0, 1e30]")] | None = None
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class Entry(Checked):
    """A defence on the leaderboard.

    Args:
        id: the name of its file.
        kind: one of `KINDS`.
        random: what is random; `redrawn` when it is drawn anew, `shared` whether the images of a batch share a draw.
        samples: forward passes that the deployed classifier averages; `rule` how they become a label. `exact` whether
            it is the exact mean over that many members of a mixture; None in entries that do not say.
        own_protocol: the accuracy under the evaluation of the source, on our network.
        attacks: every attack of the audit, and others.
        plateau: the accuracy over EOT samples, in ascending order; `flat` whether the last step changed little.
        known_seed: the accuracy if the attacker knows the random numbers of the classifier.
        mean_weights: the accuracy of the mean network without randomness, under PGD.
        baseline: the id of the entry without randomness that it is compared with.
        weights_sha256: the digest of the evaluated network, and `data_sha256` of all images of its data set.
        source: the function and the digests of the files that the network was made from, if it was not a run.
        commit: of the software, with the `command` that makes the numbers again.
        notes: where this network differs from its source.
    """

    id: Id
    name: Text
    paper: Text
    kind: Kind
    architecture: Text
    dataset: Text
    threat: Threat
    random: Text
    redrawn: Text
    status: Status
    schema: Annotated[int, _this_schema] = SCHEMA
    venue: str = ""
    code: Address = ""
    shared: bool | None = None
    samples: Count | None = None
    rule: Annotated[str, partial(one_of, options=RULES)] = "probability"
    exact: bool | None = None
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
    weights_sha256: Digest = ""
    data_sha256: Digest = ""
    source: str = ""
    commit: Commit = ""
    command: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_claimed() if self.status == CLAIMED else self._check_measured()

    @property
    def claimed(self) -> Claim | None:
        """The first claim at this threat; None without any. Entries begin with that of the variant they describe."""
        same = [claim for claim in self.claims if claim.norm == self.threat.norm and claim.eps is not None]
        near = [c for c in same if abs((c.eps or 0) - self.threat.eps) <= SAME_RADIUS * self.threat.eps]
        return near[0] if near else None

    @property
    def classifier(self) -> dict[str, Any]:
        """The deployed classifier, as the options of an evaluation. Old entries of several passes were audited so that
        a mixture is averaged exactly."""
        exact = (self.samples or 1) > 1 if self.exact is None else self.exact
        return {"samples": self.samples, "exact": exact, "rule": self.rule}

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
        assert self.worst_case is not None and self.clean is not None
        attacks = {f"attack {attack.name!r}": attack for attack in self.attacks if attack.on == ALL}
        for title, attack in {"clean accuracy": self.clean, **attacks}.items():
            self._check_not_above("worst_case", self.worst_case, title, attack)
        if self.known_seed is not None:
            self._check_not_above("known_seed", self.known_seed, "clean accuracy", self.clean)
        eots = [point.eot for point in self.plateau]
        if eots != sorted(set(eots)):
            raise ArgumentError(f"plateau: expected each number of EOT samples once, in ascending order, got {eots}")
        if self.difference is None:
            return
        if not self.baseline:
            raise ArgumentError("baseline: expected the id of an entry, as there is a difference; add it")
        if self.difference.n != self.worst_case.n:
            raise ArgumentError(
                f"difference.n: expected {self.worst_case.n}, the images of the worst case, got {self.difference.n}; "
                "audit the baseline on the same images"
            )

    def _check_not_above(self, name: str, lower: Accuracy, title: str, upper: Accuracy) -> None:
        """Refuses an accuracy above one that it bounds from below.

        Without randomness it is a minimum over the same images, and one image more is rounding. The attacks on a
        random network are scored by one draw, which may be below the mean over many, so intervals must overlap.
        """
        if self.kind == KINDS[2] and lower.n == upper.n:
            what, low, high = "accuracy", lower.accuracy, upper.accuracy + 1 / upper.n + 1e-6  # six digits
        else:
            what, low, high = "interval", lower.interval[0], upper.interval[1]
        if low > high:
            raise ArgumentError(
                f"{name}.{what}: expected at most {high:.4g}, by that of the {title}, got {low:.4g}; audit again with "
                "its points"
            )


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
            others = [one.id for one in by_id.values() if one.kind == KINDS[2] and one is not entry]
            hint = did_you_mean(entry.baseline, others)
            raise ArgumentError(f"{place}: {entry.id}: baseline: no entry {entry.baseline!r}{hint}; add its file")
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


def _check_around(interval: tuple[float, float], name: str, value: float) -> None:
    low, high = interval
    if not low <= value <= high:
        raise ArgumentError(
            f"interval: expected [low, high] around {name}={value:g}, got [{low:g}, {high:g}]; measure it again"
        )
