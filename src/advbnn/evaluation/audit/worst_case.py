"""The audit: a suite of attacks, the worst-case accuracy under all of them, and flags where it may be too high."""

import html
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor, nn

from advbnn.attacks.identity import settings_of
from advbnn.attacks.threat import Threat
from advbnn.data.imageset import Examples, row_numbers
from advbnn.display import notebook
from advbnn.display.progress import duration
from advbnn.errors import ArgumentError, ArgumentTypeError, one_of
from advbnn.evaluation.accuracy import Evaluation, attack_settings
from advbnn.evaluation.audit.attack_suite import LEVELS, ROLES
from advbnn.evaluation.audit.flags import Flag
from advbnn.evaluation.audit.headline import headline, known_seed, near_chance, next_level
from advbnn.evaluation.audit.runner import AuditRunner
from advbnn.evaluation.checks import Perturbation, check_attack
from advbnn.evaluation.identity import ModelIdentity
from advbnn.evaluation.options import Options
from advbnn.evaluation.points import Points, StoredPoints, check_cover
from advbnn.evaluation.records import Records
from advbnn.machine.processes import world

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
    points: Path | str | Points | Sequence[Path | str | Points] = (),
    save_points: Path | str | None = None,
    **options: Unpack[Options],
) -> "Audit":
    """Attack a classifier with a whole suite of attacks, and check for signs of gradient masking.

    The accuracy is the expected accuracy of the deployed classifier, `samples` weight samples with their `rule`, at the
    worst point found for each image. The points of all attacks, also at smaller radii, and the clean image are compared
    on weight samples of their own: see `worst_points`. The worst is scored by several independent ensembles of fresh
    weight samples, so the accuracy is unbiased for these points and an upper bound on robust accuracy. Its interval
    covers images and weight samples. The details say how many images are certain and inconclusive for the infinite
    ensemble: see `sequential_test`. The accuracies of single attacks are those of one ensemble.

    Args:
        model: any module that returns logits, random or not; it is not changed.
        data: the examples, such as `advbnn.data.load("digits").test`.
        threat: norm, box and radius; several that differ only in their radius give one accuracy each.
        level: `"quick"` for a first look, `"standard"`, or `"thorough"` for a publication; see `attack_suite.LEVELS`.
        transfer_from: models by name, whose adversarial examples are transferred to `model`.
        attacks: your own attacks by name, such as an adaptive attack on this defence; each runs at its radius.
        points: adversarial images, or files of them (see `points`), that compete with those of the attacks. They must
            lie in the ball of the largest radius, and are used from the smallest radius on that contains them.
        save_points: a file for the points of every attack and the worst ones; with several radii, a file for each,
            see `points_file`.
        options: as for `evaluate`: `samples=20`, `rows`, `label`, `out`, `overwrite`, `progress`, `batch_size=250`,
            `rule`, `exact`, `engine`, `precision`, `gradients` and `command`; see `Options`. `seeds` is 1 by
            default, as every seed repeats the whole audit.
    """
    threats, sources, given = _by_radius(threat), dict(transfer_from or {}), dict(attacks or {})
    one_of("level", level, LEVELS)
    for name, source in sources.items():
        if not isinstance(source, nn.Module):
            raise ArgumentTypeError(f"transfer_from must hold models by name; {name!r} is {type(source).__name__}")
    for name, attack in given.items():
        check_attack(name, attack)
        if attack.threat not in threats:
            raise ArgumentError(f"attack {name!r} has {attack.threat}; use a threat of this audit: {threats}")
    options.setdefault("seeds", 1)
    evaluation = Evaluation(model, data, **options)
    with evaluation.few_threads():
        several = [points] if isinstance(points, Path | str | Points) else points
        loaded = [one if isinstance(one, Points) else Points.load(one) for one in several]
        for one in loaded:
            for name, stored in _stored_points(one, data, threats).items():
                given[f"{name} ({one.sha256[:8]})" if name in given else name] = stored
        check_cover(loaded, row_numbers(evaluation.rows, len(data)))
        files = {} if save_points is None else {one: points_file(save_points, one, threats) for one in threats}

        def save(found: Sequence[Mapping[str, Tensor]]) -> None:
            rows, identity = row_numbers(evaluation.rows, len(data)), evaluation.plan.model
            for threat, sets in zip(threats, found, strict=True):
                Points.made(sets, rows, data, threat, identity, options.get("command", "")).save(files[threat])

        settings = {
            "name": "audit",
            "level": settings_of(LEVELS[level]),
            "transfer_from": {name: ModelIdentity.of(source).sha256 for name, source in sources.items()},
            "attacks": {name: attack_settings(attack) for name, attack in given.items()},
        }
        plan = replace(evaluation.plan, kind=WORST_CASE, name=level, attack=settings)
        plans = [replace(plan, threat=one) for one in threats]
        finished = evaluation.finished(plans)
        if finished is not None and not all(file.exists() for file in files.values()):
            raise ArgumentError(
                f"{evaluation.out} holds this audit, finished without its points; give another --out (out=)"
            )
        if finished is not None:
            return Audit(finished)
        runner = AuditRunner(
            evaluation,
            options,
            threats,
            LEVELS[level],
            transfer_from=sources,
            given=given,
            save=None if save_points is None else save,
        )
        if evaluation.progress and world().leads:
            seconds = runner.estimated_seconds() / world().size
            words = f"{level} audit of {evaluation.plan.n:,} images: roughly {duration(seconds)}"
            print(words, file=sys.stderr, flush=True)
        return Audit(runner.run(plans))


def points_file(path: Path | str, threat: Threat, threats: Sequence[Threat]) -> Path:
    """The file of the points at one radius: `path`, or `NAME-EPS` with its extension if there are several radii."""
    path, names = Path(path), [f"{one.eps:.4g}" for one in threats]
    radius = f"{threat.eps:.4g}" if len(set(names)) == len(names) else repr(threat.eps)
    return path if len(threats) == 1 else path.with_name(f"{path.stem}-{radius}{path.suffix}")


def _stored_points(points: Points, data: Examples, threats: Sequence[Threat]) -> dict[str, StoredPoints]:
    """The points as attacks at the smallest radius that contains them; larger balls contain them too."""

    def at(threat: Threat) -> dict[str, StoredPoints]:
        return {f"{Path(points.name).stem}: {name}": one for name, one in points.on(data, threat).items()}

    for threat in threats[:-1]:
        with suppress(ArgumentError):
            return at(threat)
    return at(threats[-1])


@dataclass(frozen=True, repr=False)
class Audit:
    """The result of an audit.

    Attributes:
        records: one per radius: the worst-case accuracy, and all else in the details. Other kinds are left out.
    """

    records: Records

    def __post_init__(self) -> None:
        found = Records(sorted(self.records.where(kind=WORST_CASE), key=attrgetter("radius")))
        if len({(record.model, record.name) for record in found}) != 1:
            listed = ", ".join(dict.fromkeys(f"{r.model.label} ({r.name})" for r in found)) or "none"
            raise ArgumentError(f"records must hold the audit of one model at one level, found: {listed}")
        object.__setattr__(self, "records", found)

    def flags(self, eps: float | None = None) -> tuple[Flag, ...]:
        """All flags at a radius, raised or not; at the largest radius when None."""
        record = self.records[-1] if eps is None else self.records.only(eps=eps)
        return tuple(Flag(**stored) for stored in record.details["flags"])

    @property
    def raised(self) -> tuple[Flag, ...]:
        """The raised flags, each with its evidence at the largest radius that raises it."""
        flags = {flag.name: flag for record in self.records for flag in self.flags(record.radius) if flag.raised}
        return tuple(flags.values())

    def __repr__(self) -> str:
        raised = ", ".join(flag.name for flag in self.raised) or "none"
        return f"Audit({'; '.join(map(headline, self.records))}; flags raised: {raised})"

    def _repr_html_(self) -> str:
        """The worst case at each radius, then the attacks at the largest radius and the raised flags, for notebooks."""
        first, last = self.records[0], self.records[-1]
        what = f"{first.model.label}: worst case over the attacks of a {first.name} audit"
        tables = [self.records._repr_html_().replace("Measured accuracies", html.escape(what))]
        rows = []
        for entry in last.details["attacks"]:
            role = ROLES.get(entry["role"], entry["role"])
            rows.append((entry["name"], role, f"{sum(entry['correct']):,} of {sum(entry['n']):,}"))
        tables.append(notebook.table(f"Attacks at radius {last.radius:.4g}", ("attack", "kind", "correct"), rows))
        flags = [(flag.title, flag.evidence) for flag in self.raised] or [("none", "")]
        return "".join([*tables, notebook.table("Raised flags", ("flag", "evidence"), flags)])

    def __str__(self) -> str:
        first = self.records[0]
        classifier = f"{first.samples} weight sample{'' if first.samples == 1 else 's'}"
        if first.exact:
            classifier = f"the exact mean over {first.samples} members"
        elif not first.details["random"]:
            classifier = "deterministic"
        what = f"{first.model.label}, {first.n:,} images of {first.data.name}, {classifier}"
        lines = [*filter(None, [near_chance(first)]), what]
        lines += [*map(headline, self.records), *filter(None, map(known_seed, self.records)), next_level(first.name)]
        lines += [f"{flag.title}. {flag.evidence}" for flag in self.raised] or ["No flag is raised."]
        return "\n".join(lines)


def _by_radius(threat: Threat | Sequence[Threat]) -> list[Threat]:
    threats: list[Any] = list(threat) if isinstance(threat, list | tuple) else [threat]
    for one in threats:
        if not isinstance(one, Threat):
            raise ArgumentTypeError(f"threat must be a Threat such as Threat('linf', 8/255), or a list; got {one!r}")
        if not 0 < one.eps < math.inf:
            raise ArgumentError(f"threat must have a positive and finite radius, got eps={one.eps}")
    if len({one.eps for one in threats}) < max(1, len(threats)) or len({replace(one, eps=1) for one in threats}) > 1:
        raise ArgumentError(f"threat must be one Threat, or several that differ only in their radius; got {threats}")
    return sorted(threats, key=lambda one: one.eps)
