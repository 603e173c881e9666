"""The sceptic's evaluation: a suite of attacks, one worst-case accuracy, and signs that it is too good to be true."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from torch import Tensor, nn

from advbnn.attacks.threat import Threat
from advbnn.data.imageset import Examples
from advbnn.errors import ArgumentError, ArgumentTypeError, unknown
from advbnn.evaluation.accuracy import Evaluation, Options, Perturbation
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.flags import Flag
from advbnn.evaluation.audit.runner import AuditRunner
from advbnn.evaluation.identity import ModelIdentity
from advbnn.evaluation.records import Record, Records

WORST_CASE = "worst_case"
"""The kind of an audit's records."""


def audit(
    model: nn.Module,
    data: Examples,
    threat: Threat | Sequence[Threat],
    level: str = "standard",
    *,
    transfer_from: Mapping[str, nn.Module] | None = None,
    attacks: Mapping[str, Perturbation] | None = None,
    **options: Unpack[Options],
) -> "Audit":
    """Attack a classifier in all the ways that a sceptic would ask for, and look for signs that they were misled.

    An image is robust if none of the attacks changes the answer of the ensemble of all draws, argmax_c E p_c. Whether
    a point does is decided by draws of its own, as many as it takes: see `sequential_test`. For each image the chance
    of a wrong decision is at most 1 %; what stays undecided counts as not robust. An image that falls at one radius
    has fallen at all larger ones. The accuracies of single attacks are those of the ensemble of `samples` draws.

    Args:
        model: any module that returns logits, random or not; it stays as it is.
        data: the examples, such as `advbnn.data.load("digits").test`.
        threat: norm, box and radius; several that differ in their radius give one accuracy each.
        level: `"quick"` for a first look, `"standard"`, or `"thorough"` for a publication; see `attack_suite.LEVELS`.
        transfer_from: models by name, whose adversarial examples are tried too.
        attacks: attacks of your own by name, such as one made for this defence; each is tried at its radius.
        options: see `Evaluation`. `seeds` is 1 unless given, as every seed makes the whole audit again. `rule` is not
            among them: the classifier is that of eq. 18.
    """
    threats, sources, given = _by_radius(threat), dict(transfer_from or {}), dict(attacks or {})
    if level not in LEVELS:
        raise unknown("level", level, LEVELS)
    if "rule" in options:
        raise ArgumentError("audit judges by the largest mean probability (eq. 18) and takes no rule; leave it out")
    _check_sources(sources)
    options.setdefault("seeds", 1)
    evaluation = Evaluation(model, data, **options)
    for name, attack in given.items():
        _check_given(name, evaluation.planned(name, attack), threats)
    runner = AuditRunner.plan(evaluation, threats, LEVELS[level], sources, given)
    identities = {name: _sha256(source) for name, source in sources.items()}
    described = {name: _with_source(attack) for name, attack in given.items()}
    plan = replace(
        evaluation.plan,
        kind=WORST_CASE,
        name=level,
        attack=f"{LEVELS[level]!r}, transfer_from={identities}, attacks={described}",
    )
    plans = [replace(plan, threat=t) for t in threats]
    return Audit(runner.judge.measure(plans, runner, runner.details))


@dataclass(frozen=True)
class Audit:
    """What an audit has found.

    Attributes:
        records: one a radius, whose accuracy is that of the worst case, and whose details hold all else. May be given
            among other records; there must be one audit.
    """

    records: Records

    def __post_init__(self) -> None:
        found = Records(sorted(self.records.where(kind=WORST_CASE), key=_radius))
        if len({(record.model, record.name) for record in found}) != 1:
            listed = ", ".join(dict.fromkeys(f"{r.model.label} ({r.name})" for r in found)) or "none"
            raise ArgumentError(f"records must hold the audit of one model at one level, found: {listed}")
        object.__setattr__(self, "records", found)

    def flags(self, eps: float | None = None) -> tuple[Flag, ...]:
        """All flags at a radius, raised or not; at the largest one when None."""
        record = self.records[-1] if eps is None else self.records.only(eps=eps)
        return tuple(Flag(**stored) for stored in record.details["flags"])

    @property
    def raised(self) -> tuple[Flag, ...]:
        """The flags that are raised, each as found at the largest radius at which it is."""
        flags = {flag.name: flag for record in self.records for flag in self.flags(_radius(record)) if flag.raised}
        return tuple(flags.values())

    def __str__(self) -> str:
        first = self.records[0]
        lines = [f"{first.model.label}, {first.n:,} images of {first.data.name}, level {first.name}"]
        for record in self.records:
            (low, high), norm = record.interval, record.threat.norm if record.threat else ""
            lines.append(
                f"{norm} {_radius(record):.4g}: {100 * record.accuracy:.1f} % robust in the worst case, "
                f"95 % interval {100 * low:.1f} - {100 * high:.1f} %"
            )
        lines += [f"{flag.title}. {flag.evidence}" for flag in self.raised] or ["No flag is raised."]
        return "\n".join(lines)


def _radius(record: Record) -> float:
    return record.threat.eps if record.threat else 0.0


def _by_radius(threat: object) -> list[Threat]:
    several = isinstance(threat, Iterable) and not isinstance(threat, str | Tensor)
    threats: list[Any] = list(threat) if several else [threat]  # type: ignore[call-overload]
    for one in threats:
        if not isinstance(one, Threat):
            raise ArgumentTypeError(
                f"threat must be a Threat such as Threat('linf', 8/255), or several in a list; got {one!r}"
            )
        if not 0 < one.eps < math.inf:
            raise ArgumentError(f"threat must have a positive and finite radius to be audited, got eps={one.eps}")
        if replace(one, eps=threats[0].eps) != threats[0]:
            raise ArgumentError(f"several threats may differ in their radius alone, got {threats[0]} and {one}")
    if not threats or len(set(threats)) < len(threats):
        raise ArgumentError(f"threat must be one Threat, or several with different radii; got {threats}")
    return sorted(threats, key=lambda one: one.eps)


def _with_source(attack: Perturbation) -> Any:
    """An attack as it is written into records: one that is made on another network, with that network."""
    source = getattr(attack, "source", None)
    return attack if source is None else (attack, _sha256(source))


def _sha256(model: nn.Module) -> str:
    return ModelIdentity.of(model).sha256[:16]


def _check_sources(sources: Mapping[str, nn.Module]) -> None:
    for name, source in sources.items():
        if not isinstance(source, nn.Module):
            raise ArgumentTypeError(f"transfer_from must hold models by name; {name!r} is {type(source).__name__}")


def _check_given(name: str, plan: Record, threats: Sequence[Threat]) -> None:
    if plan.threat not in threats:
        listed = ", ".join(map(str, threats))
        raise ArgumentError(f"attack {name!r} has {plan.threat}, and this audit is of {listed}; give it one of these")
