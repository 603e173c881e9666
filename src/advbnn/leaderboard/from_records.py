"""An entry from the records of an audit and of what else was measured, and from what its author says about it."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import advbnn
from advbnn.attacks.threat import Threat
from advbnn.defenses.published import NEVER, Published
from advbnn.errors import ArgumentError
from advbnn.evaluation.audit.batch_audit import KNOWN_SEED
from advbnn.evaluation.audit.flags import FLAGS
from advbnn.evaluation.audit.headline import band
from advbnn.evaluation.comparison import comparison
from advbnn.evaluation.identity import DataIdentity, ModelIdentity
from advbnn.evaluation.intervals import accuracy_interval
from advbnn.evaluation.records import Record, Records
from advbnn.evaluation.rescoring import POINTS
from advbnn.leaderboard import entry as board
from advbnn.leaderboard.schema import Checked, read
from advbnn.machine.files import read_text
from advbnn.names import DATA_SETS
from advbnn.report.audited import clean_in, worst_cases
from advbnn.report.select import ball
from advbnn.training.provenance import git_state

PROTOCOL, FIXED, MEAN, EOT = "protocol", "fixed randomness", " (mean weights)", "eot"
"""Kind of the authors' protocol, name of the attack that knows the seed, suffix of the mean network, and the curve."""

FLAT = 0.01
"""The largest change of accuracy from one number of EOT samples to the next at which the curve is flat."""


@dataclass(frozen=True, kw_only=True)
class About(Checked):
    """What records do not say; the fields of an `Entry`."""

    id: board.Id
    name: board.Text
    paper: board.Text
    kind: board.Kind
    architecture: board.Text
    random: board.Text
    redrawn: board.Text
    dataset: str = ""
    venue: str = ""
    code: board.Address = ""
    shared: bool | None = None
    claims: tuple[board.Claim, ...] = ()
    status: board.Status = board.REPRODUCED
    baseline: str = ""
    cost: board.Cost | None = None
    notes: tuple[str, ...] = ()


def read_about(path: Path) -> About:
    try:
        table: dict[str, Any] = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f"{path} is not TOML: {error}; see docs/leaderboard.md for an example") from None
    try:
        return read(About, table)
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from None


def about_published(published: Published, dataset: str, architecture: str, **fields: Any) -> About:
    claims = tuple(
        board.Claim(
            attack=claim.attack,
            accuracy=round(claim.accuracy / 100, 6),
            clean=None if claim.clean is None else round(claim.clean / 100, 6),
            architecture=claim.architecture,
            where=claim.where,
            norm=claim.norm,
            eps=None if claim.eps is None else round(claim.eps, 6),
        )
        for claim in published.claims
        if not claim.quoted
    )
    kind = board.KINDS[2] if published.redrawn == NEVER else board.KINDS[0 if published.trained else 1]
    known: dict[str, Any] = {
        "id": f"{dataset}-{published.name}",
        "name": published.title,
        "kind": kind,
        "architecture": architecture,
        "dataset": dataset,
        "claims": claims,
        "notes": published.differences,
        **{name: getattr(published, name) for name in ("paper", "venue", "code", "random", "redrawn", "shared")},
    }
    return About(**known | fields)


def entry_of(
    records: Records,
    about: About,
    *,
    label: str | None = None,
    baseline: Record | None = None,
    eps: float | None = None,
) -> board.Entry:
    """The entry of one model.

    Args:
        records: an audit, and what else was measured of the same model; see `measure`.
        about: the description.
        label: the model, if the records are of several.
        baseline: the worst case of the entry `about.baseline`, on the same images at the same level.
        eps: the radius, if there are audits at several.
    """
    worst = audit_in(records, label, eps)
    assert worst.threat is not None
    own = records.where(label=worst.model.label)
    at_radius = Records(record for record in own if record.threat == worst.threat)
    clean = next((one for one in own.where(kind="clean") if _comparable(one, worst)), None) or clean_in(worst)
    if clean is None:
        raise ArgumentError("records hold no clean accuracy; run advbnn evaluate, or the audit again")
    given, plateau = _plateau(at_radius, worst)
    fixed = next(iter(at_radius.where(name=FIXED)), None)
    mean = next((r for r in records.where(label=f"{worst.model.label}{MEAN}") if r.threat == worst.threat), None)
    protocol = next(iter(at_radius.where(kind=PROTOCOL)), None)
    found = band(worst)
    _check_kind(about.kind, worst)
    return board.Entry(
        **vars(about) | {"dataset": about.dataset or worst.data.name},
        threat=board.Threat(norm=worst.threat.norm, eps=round(worst.threat.eps, 6)),
        samples=worst.samples,
        rule=worst.rule,
        exact=worst.exact,
        clean=_accuracy(clean),
        own_protocol=None if protocol is None else _attacked(protocol),
        attacks=(*_suite(worst), *map(_attacked, given)),
        worst_case=board.WorstCase(
            **_numbers(worst),
            level=worst.name,
            certain=None if found is None else round(found.certain, 6),
            inconclusive=None if found is None else round(found.inconclusive, 6),
        ),
        plateau=plateau,
        flat=None if len(plateau) < 2 else abs(plateau[-1].accuracy - plateau[-2].accuracy) <= FLAT,
        known_seed=_known_seed(worst) or (None if fixed is None else _accuracy(fixed)),
        mean_weights=None if mean is None else _accuracy(mean),
        flags=tuple(
            board.Flag(name=flag["name"], title=_title(flag["name"]), evidence=flag["evidence"])
            for flag in worst.details.get("flags", ())
            if flag["raised"]
        ),
        difference=None if baseline is None else _difference(worst, baseline),
        weights_sha256=worst.model.sha256,
        data_sha256=worst.data.sha256,
        source=worst.model.source,
        commit=software(),
        command=worst.command or "Python",
    )


def _check_kind(kind: str, worst: Record) -> None:
    """Random or not, as the audit found; the exact mean of a mixture, a random network that never varies, is either."""
    if (random := worst.details.get("random")) is None or worst.exact:
        return
    if random == (kind == board.KINDS[2]):
        expected = f"'{board.KINDS[0]}' or '{board.KINDS[1]}'" if random else repr(board.KINDS[2])
        what = "random" if random else "not random: all its passes agree"
        raise ArgumentError(f"kind: expected {expected}, got {kind!r}; the audited network is {what}")


def lowered(entry: board.Entry, record: Record) -> board.Entry:
    """The entry with the worst case at given points (see `rescore`), where that is lower; else the entry itself.

    Lower is by one image or more: the score of the same points of a random network varies by less. The difference to
    the baseline is dropped, as the points were not given to the baseline.
    """
    if entry.worst_case is None:
        raise ArgumentError(f"{entry.id}: status {entry.status!r} has no worst case to lower; audit its network first")
    norm, eps = ball(record)
    if record.name != POINTS or norm != entry.threat.norm or abs(eps - entry.threat.eps) > 1e-6:
        raise ArgumentError(f"the points must be for {entry.threat.norm} {entry.threat.eps:g}; give that radius")
    check_subject(entry, record.model, record.data)
    if record.samples != entry.samples:
        raise ArgumentError(
            f"{entry.id}: the points were scored by {record.samples} passes, the entry by {entry.samples}; state in "
            "the entry whether its classifier is exact"
        )
    if "autocast bfloat16" in record.precision:
        raise ArgumentError(f"{entry.id}: the points were scored in bfloat16; score them without --precision bf16")
    if record.n < entry.worst_case.n:
        images = f"{record.n:,} images, the entry on {entry.worst_case.n:,}"
        raise ArgumentError(f"{entry.id}: the points were scored on {images}; score them on as many (--limit)")
    if (entry.worst_case.accuracy - record.accuracy) * record.n < 1 - 1e-3:  # accuracies have six digits
        return entry
    worst = board.WorstCase(**_numbers(record), level=board.POINTS)
    files = ", ".join(digest[:8] for digest in (record.attack or {}).get("files", ()))
    how = f"worst case lowered from {entry.worst_case.accuracy:.4g} by given points (sha256 {files})"
    notes = (*entry.notes, f"{how}: {record.command}" if record.command else how)
    return replace(entry, worst_case=worst, attacks=(*entry.attacks, _attacked(record)), difference=None, notes=notes)


def check_subject(entry: board.Entry, model: ModelIdentity, data: DataIdentity) -> None:
    """Refuses another network, or other images, than those that the entry was measured on."""
    # a submitter may call other data anything
    named = entry.dataset in DATA_SETS and data_set(data.name) != entry.dataset
    if data.sha256 != entry.data_sha256 if entry.data_sha256 else named:
        raise ArgumentError(
            f"{entry.id}: the images are {data.name} ({data.sha256[:8]}), not those of the entry; give the test images "
            f"of {entry.dataset}"
        )
    if model.sha256 != entry.weights_sha256:
        raise ArgumentError(
            f"{entry.id}: the network has the digest {model.sha256[:8]}, the entry {entry.weights_sha256[:8]}; give "
            "the network of the entry"
        )
    if entry.source and model.source != entry.source:  # the same weights in other code may be another network
        raise ArgumentError(
            f"{entry.id}: the network is made by {model.source or 'a run'}, that of the entry by {entry.source}; give "
            "the same --model and --weights"
        )


def data_set(name: str) -> str:
    """The data set by the name of its examples, which may be a part of it: `"digits"` of `"digits[9 of 500]"`."""
    return (name.split("[")[0].split() or [name])[0]


def software() -> str:
    """The commit of this software, or its version where it is installed without its repository."""
    package = Path(advbnn.__file__).parent
    source = package.parent.parent
    state = git_state(source) if (source / ".git").exists() else None
    return state["commit"] if state else f"advbnn {advbnn.__version__}"


def with_one_audit(records: Records, threat: Threat, level: str) -> Records:
    """The records without audits at other threats or levels, which one file may hold."""
    return Records(r for r in records if r.kind != "worst_case" or (r.threat, r.name) == (threat, level))


def audit_in(records: Records, label: str | None, eps: float | None, what: str = "records") -> Record:
    """The only audit, of a model and at a radius if they are given; `what` names the records in messages."""
    audits = [record for record in worst_cases(records) if label in (None, record.model.label)]
    found = [record for record in audits if eps is None or abs(record.radius - eps) < 1e-6]
    if len(found) != 1:
        listed = ", ".join(f"{record.model.label} at {record.radius:.4g}" for record in found) or "none"
        raise ArgumentError(f"{what} must hold one audit, found: {listed}; run advbnn audit, or give label and eps")
    return found[0]


def _comparable(record: Record, worst: Record) -> bool:
    """Whether a record is of the audited classifier, on the images of the audit or more of them."""
    # passes of a network that is not random are all the same
    same = record.samples == worst.samples or worst.details.get("random") is False
    images = record.data.sha256 == worst.data.sha256 and record.n >= worst.n
    return same and images and (record.rule, record.exact) == (worst.rule, worst.exact)


def _plateau(records: Iterable[Record], worst: Record) -> tuple[list[Record], tuple[board.Eot, ...]]:
    """Single attacks, and the curve over EOT samples: of several, as of other steps, the last one with most points."""
    attacks = [record for record in records if record.kind == "attack" and record.name != FIXED]
    curves: dict[str, list[Record]] = {}
    for record in attacks:
        if record.curve == EOT and record.at is not None and _comparable(record, worst):
            other = {name: value for name, value in (record.attack or {}).items() if name != "eot"}
            curves.setdefault(f"{record.name} {record.data} {other}", []).append(record)
    longest = max(map(len, curves.values()), default=0)
    last = [curve for curve in curves.values() if len(curve) == longest][-1:]
    curve = sorted(chain.from_iterable(last), key=lambda record: record.at or 0)
    points = tuple(board.Eot(**_numbers(record), eot=int(record.at or 0)) for record in curve)
    return [record for record in attacks if not record.curve and record.n >= worst.n], points


def _suite(worst: Record) -> list[board.Attacked]:
    found = []
    for attack in worst.details["attacks"]:
        counts, n = attack["correct"], worst.n
        if attack["on"] != "all":
            counts, n = [sum(counts)], sum(attack["n"])
        if attack["role"] != "clean" and n:
            about = {"name": attack["name"], "settings": _plain(attack["attack"]), "on": attack["on"]}
            found.append(board.Attacked(**_from_counts(counts, n), **about))
    return found


def _known_seed(worst: Record) -> board.Accuracy | None:
    if KNOWN_SEED not in worst.details:
        return None
    return board.Accuracy(**_from_counts(worst.details[KNOWN_SEED], worst.n))


def _difference(worst: Record, baseline: Record) -> board.Difference:
    found = comparison(worst, baseline)
    if found is None:
        raise ArgumentError("the baseline was measured on other images; measure both on the same")
    if worst.model.sha256 == baseline.model.sha256:
        raise ArgumentError("the baseline is the same network; give the records of the one without randomness")
    if worst.name != baseline.name or worst.threat != baseline.threat:
        raise ArgumentError(
            f"the baseline was audited at level {baseline.name!r} and {baseline.threat}, this network at "
            f"{worst.name!r} and {worst.threat}; audit both alike"
        )
    return board.Difference(difference=round(found.difference, 6), interval=_outward(found.interval), n=found.n)


def _accuracy(record: Record) -> board.Accuracy:
    return board.Accuracy(**_numbers(record))


def _attacked(record: Record) -> board.Attacked:
    # AutoAttack counts the unluckiest of its passes, which may be below the expected accuracy
    on = "its own count" if "scored by" in (record.attack or {}) else "all"
    return board.Attacked(**_numbers(record), name=record.name, settings=_plain(record.attack), on=on)


def _numbers(record: Record) -> dict[str, Any]:
    return {"accuracy": round(record.accuracy, 6), "interval": _outward(record.interval), "n": record.n}


def _from_counts(counts: Sequence[int], n: int) -> dict[str, Any]:
    """The same from the number of images, of `n`, that are right under each seed."""
    interval = _outward(accuracy_interval(counts, n))
    return {"accuracy": round(sum(counts) / len(counts) / n, 6), "interval": interval, "n": n}


def _outward(interval: tuple[float, float]) -> tuple[float, float]:
    """Rounded so that it still holds what it held."""
    low, high = interval
    return max(-1.0, round(low - 5e-7, 6)) if low else 0.0, min(1.0, round(high + 5e-7, 6))


def _plain(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (settings or {}).items() if name != "threat"}


def _title(name: str) -> str:
    return FLAGS[name].title if name in FLAGS else name
