"""The sceptic's evaluation: a battery of attacks, one worst-case accuracy, and signs that it is too good to be true."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from advbnn.attackable import Attackable, attackable
from advbnn.attacks import PGD, GradientMaskingWarning
from advbnn.attacks.losses import margin
from advbnn.attacks.oracle import is_random
from advbnn.battery import LEVELS, Level, Trial, battery
from advbnn.data.augment import to_float
from advbnn.data.imageset import Examples, row_numbers
from advbnn.evaluate import CLEAN, Evaluation, Options, SmallSampleWarning
from advbnn.flags import Findings, Flag, find_flags
from advbnn.identity import ModelIdentity
from advbnn.messages import unknown
from advbnn.modes import evaluating
from advbnn.probes import probe
from advbnn.records import Record, Records
from advbnn.seeds import derive_seed
from advbnn.threat import Threat
from advbnn.worst_case import decide

KIND = "worst_case"
"""The kind of an audit's records."""

ERROR = 0.01
"""The chance, for each image, that the test which decides about it is wrong."""

_LOOKED_AT = 16
"""Images that tell what kind of outputs the model has."""


def audit(
    model: nn.Module,
    data: Examples,
    threat: Threat | Sequence[Threat],
    level: str = "standard",
    *,
    transfer_from: Mapping[str, nn.Module] | None = None,
    **options: Unpack[Options],
) -> "Audit":
    """Attack a classifier in every way that a sceptic would ask for, and look for signs that the attacks were misled.

    An image is robust if none of the attacks changes the answer of the ensemble of all draws, argmax_c E p_c. Whether
    a point does is decided by a sequential test on draws of its own, see `worst_case.decide`, which for each image is
    wrong with a chance of 1 % at most; what it leaves undecided counts as not robust. An image that has fallen at a
    radius has fallen at every larger one. Accuracies of single attacks are those of the ensemble of `samples` draws.

    Args:
        model: any module that returns logits, random or not; it stays as it is.
        data: the examples, such as `advbnn.data.load("digits").test`.
        threat: norm, box and radius; several that differ in their radius give an accuracy for each.
        level: `"quick"` for a first look, `"standard"`, or `"thorough"` for a publication; see `battery.LEVELS`.
        transfer_from: models by name, whose adversarial examples are tried too.
        options: see `Evaluation`. `seeds` is 1 unless given; every seed makes the whole audit again. `rule` is not
            among them: the classifier is that of eq. 18.
    """
    threats = _by_radius(threat)
    if level not in LEVELS:
        raise unknown("level", level, LEVELS)
    if "rule" in options:
        raise ValueError("audit judges the largest mean probability (eq. 18); leave out rule")
    options = {"seeds": 1, **options}  # type: ignore[assignment]
    evaluation = Evaluation(model, data, **options)
    work = _Work.of(evaluation, threats, LEVELS[level], transfer_from or {})
    plan = replace(evaluation.plan, kind=KIND, name=level, attack=_named(LEVELS[level], transfer_from or {}))
    plans = [replace(plan, threat=t) for t in threats]
    return Audit(evaluation.measure(plans, work, work.details))


@dataclass(frozen=True)
class Audit:
    """What an audit has found.

    Attributes:
        records: one for each radius, whose accuracy is that of the worst case; made from any records that hold the
            audit of one model.
    """

    records: Records

    def __post_init__(self) -> None:
        found = Records(sorted(self.records.where(kind=KIND), key=lambda r: r.threat.eps if r.threat else 0.0))
        if len({(record.model, record.name) for record in found}) != 1:
            listed = ", ".join(f"{r.model.label} ({r.name})" for r in found) or "none"
            raise ValueError(f"records must hold the audit of one model at one level, found: {listed}")
        object.__setattr__(self, "records", found)

    def flags(self, eps: float | None = None) -> tuple[Flag, ...]:
        """All flags at a radius, the largest when None, raised or not."""
        record = self.records[-1] if eps is None else self.records.only(eps=eps)
        return tuple(Flag(**stored) for stored in record.details["flags"])

    @property
    def raised(self) -> tuple[Flag, ...]:
        """The flags that were raised, each at the largest radius at which it was."""
        found = {flag.name: flag for record in self.records for flag in self.flags(_eps(record)) if flag.raised}
        return tuple(found.values())

    def __str__(self) -> str:
        first = self.records[0]
        lines = [f"Audit ({first.name}) of {first.model.label} on {first.n:,} images of {first.data.name}"]
        for record in self.records:
            low, high = record.interval
            attacks = [(one["name"], one["correct"][0] / one["n"][0]) for one in record.details["attacks"] if one["on"] == "all"]
            lines += [
                f"{record.threat.norm} {_eps(record):.4g}: {record.accuracy:.1%} robust in the worst case "
                f"(95 % interval {low:.1%} - {high:.1%}); " + ", ".join(f"{name} {share:.1%}" for name, share in attacks)
            ]
        lines += [f"! {flag.title}. {flag.evidence}" for flag in self.raised] or ["No flag was raised."]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Work:
    """Attacks and probes one batch after another, and makes flags of what came out.

    Attributes:
        judge: scores, and hands the model over in a form that all attacks can work with.
        level: how much is tried.
        batteries: the attacks, for each radius.
        far: an attack at a radius that nothing can survive; None if there is none.
        random: whether the network is.
    """

    judge: Evaluation
    level: Level
    batteries: tuple[tuple[Trial, ...], ...]
    far: PGD | None
    random: bool

    @classmethod
    def of(
        cls, evaluation: Evaluation, threats: Sequence[Threat], level: Level, transfer_from: Mapping[str, nn.Module]
    ) -> "_Work":
        data = evaluation.data
        rows = torch.arange(len(data)) if evaluation.rows is None else row_numbers(evaluation.rows, len(data))
        stored, labels = next(iter(data.gather([rows[:_LOOKED_AT]])))
        x, _ = evaluation.prepared(to_float(stored), labels)
        model = attackable(evaluation.model, x)
        with evaluating(model):
            random = is_random(model, x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallSampleWarning)  # said already
            judge = replace(evaluation, model=model, samples=evaluation.samples if random else 1)
        batteries = tuple(
            battery(level, t, model, classes=len(data.classes), random=random, transfer_from=transfer_from)
            for t in threats
        )
        largest = _hopeless(threats[-1], x[0].numel())
        far = None if largest is None else PGD(largest, steps=level.steps[0], eot=level.draws[-1] if random else 1)
        return cls(judge, level, batteries, far, random)

    def __call__(self, x: Tensor, y: Tensor, batch: int) -> dict[str, Tensor]:
        x, y = self.judge.prepared(x, y)
        first = self.judge.seed_list[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradientMaskingWarning)  # that is what flags are for
            seeds = [self._one_seed(x, y, seed, batch) for seed in self.judge.seed_list]
            threat = self.batteries[0][0].attack.threat
            found = probe(self._model, x, y, threat, self.judge.samples, derive_seed(first, "probe", batch))
        return {**found, **{name: torch.stack([one[name] for one in seeds], -1) for name in seeds[0]}}

    @property
    def _model(self) -> Attackable:
        assert isinstance(self.judge.model, Attackable)
        return self.judge.model

    def _one_seed(self, x: Tensor, y: Tensor, seed: int, batch: int) -> dict[str, Tensor]:
        standing = _Standing(self, y, seed)
        clean = self._ask(x, y, seed)
        standing.face(x[None], clean[None])
        right, robust, undecided = [], [], []
        for trials in self.batteries:
            outcomes = self._attack(trials, x, y, seed, batch, standing)
            right.append(outcomes)
            robust.append(standing.robust.clone())
            undecided.append(standing.undecided.clone())
        far = clean
        if self.far is not None:
            far = self._ask(self.judge.craft(self.far, x, y, seed, batch), y, seed)
        return {
            "clean": clean > 0,
            "far": far > 0,
            "right": torch.stack(right, 1),
            "correct": torch.stack(robust, 1),
            "undecided": torch.stack(undecided, 1),
            "draws": standing.draws,
        }

    def _attack(
        self, trials: Sequence[Trial], x: Tensor, y: Tensor, seed: int, batch: int, standing: "_Standing"
    ) -> Tensor:
        """Which images each trial leaves right: 1, 0, or -1 where it was not tried, [n, trials]."""
        right = torch.full((len(x), len(trials)), -1, dtype=torch.int8, device=x.device)
        points, leads = [], []
        for number, trial in enumerate(trials):
            if trial.on == "all":
                points.append(self.judge.craft(trial.attack, x, y, seed, batch))
                leads.append(self._ask(points[-1], y, seed))
                right[:, number] = leads[-1] > 0
        standing.face(torch.stack(points), torch.stack(leads))
        for number, trial in enumerate(trials):
            rows = standing.robust.nonzero().squeeze(1)
            if trial.on == "survivors" and len(rows):
                point = self.judge.craft(trial.attack, x[rows], y[rows], seed, batch)
                lead = self._ask(point, y[rows], seed)
                right[rows, number] = (lead > 0).to(right)
                standing.face(point[None], lead[None], rows)
        return right

    def _ask(self, x: Tensor, y: Tensor, seed: int) -> Tensor:
        """By how much the ensemble's probability of the label leads all others, [n]; 0 or less is an error."""
        return -margin(self.judge.classify(x, seed).probs, y)

    def details(self, results: dict[str, Tensor]) -> list[dict[str, Any]]:
        """For each radius the attacks one by one, how the worst case was decided, and the flags."""
        return [self._details(results, number, trials) for number, trials in enumerate(self.batteries)]

    def _details(self, results: dict[str, Tensor], radius: int, trials: Sequence[Trial]) -> dict[str, Any]:
        clean, right = results["clean"], results["right"][:, radius]
        rows = [{"name": CLEAN, "role": CLEAN, "on": "all", "attack": "", **_counts(clean.to(right))}]
        for number, trial in enumerate(trials):
            about = {"name": trial.name, "role": trial.role, "on": trial.on, "attack": repr(trial.attack)}
            rows.append(about | _counts(right[:, number]))
        tried = (right >= 0).all(-1)
        findings = Findings(
            trials=trials,
            right=torch.where(tried, right.double().mean(-1), math.nan),
            clean=clean.double().mean(-1),
            robust=results["correct"][:, radius].double().mean(-1),
            large_eps=None if self.far is None else results["far"].double().mean(-1),
            probes=results,
            random=self.random,
            probabilities=self._model.returns_probabilities,
        )
        return {
            "attacks": rows,
            "undecided": results["undecided"][:, radius].sum(0).tolist(),
            "error": ERROR,
            "most_draws": self.level.most_draws if self.random else 1,
            "mean_draws": results["draws"].double().mean().item(),
            "random": self.random,
            "flags": [asdict(flag) for flag in find_flags(findings)],
        }


class _Standing:
    """Which images of a batch no point has brought down so far, as the sequential test has decided.

    Attributes:
        robust: every point was decided to be classified correctly, [n].
        undecided: a point could not be decided; such an image is not robust, [n].
        draws: the draws that the decisions took, [n].
    """

    def __init__(self, work: _Work, y: Tensor, seed: int) -> None:
        self._work, self._y, self._seed, self._faced = work, y, seed, 0
        self._points_in_all = 1 + sum(len(trials) for trials in work.batteries)
        self.robust = torch.ones_like(y, dtype=torch.bool)
        self.undecided, self.draws = torch.zeros_like(self.robust), torch.zeros_like(y)

    def face(self, points: Tensor, leads: Tensor, rows: Tensor | None = None) -> None:
        """Decide about those images that still stand.

        Args:
            points: [points, images, ...].
            leads: of the label, as a small ensemble saw them, [points, images]: which point is looked at first.
            rows: the images; all of them when None.
        """
        rows = torch.arange(len(self._y), device=self._y.device) if rows is None else rows
        worst = leads.argmin(0)
        # most images that fall do so at their worst point, and need not be asked about the others
        self._judge(points[worst, torch.arange(len(rows), device=rows.device)], leads.amin(0), rows)
        number, image = (worst[None] != torch.arange(len(points), device=rows.device)[:, None]).nonzero(as_tuple=True)
        self._judge(points[number, image], leads[number, image], rows[image])

    def _judge(self, x: Tensor, lead: Tensor, rows: Tensor) -> None:
        stand = self.robust[rows]
        x, lead, rows = x[stand], lead[stand], rows[stand]
        self._faced += 1
        if len(rows) == 0:
            return
        if not self._work.random:
            self.robust[rows[lead <= 0]] = False
            return
        verdict = decide(
            self._work.judge.model,
            x,
            self._y[rows],
            # other draws each time, so that they owe nothing to what was decided before
            seed=derive_seed(self._seed, "worst case", self._faced),
            most_draws=self._work.level.most_draws,
            false_right=ERROR,
            false_wrong=ERROR / self._points_in_all,
            batch_size=self._work.judge.batch_size,
        )
        self.robust[rows[~verdict.right]] = False
        self.undecided[rows[~(verdict.right | verdict.wrong)]] = True
        self.undecided[rows[verdict.wrong]] = False
        self.draws.index_add_(0, rows, verdict.draws)


def _counts(right: Tensor) -> dict[str, list[int]]:
    """Of how many images, per seed, how many were right; `right` is -1 where an image was not tried."""
    return {"n": (right >= 0).sum(0).tolist(), "correct": (right == 1).sum(0).tolist()}


def _by_radius(threat: Threat | Sequence[Threat]) -> list[Threat]:
    threats = [threat] if isinstance(threat, Threat) else sorted(threat, key=lambda t: t.eps)
    if not threats:
        raise ValueError("threat must be a Threat, or several with different radii; got none")
    for one in threats:
        if not isinstance(one, Threat):
            raise TypeError(f"threat must be a Threat such as Threat('linf', 8/255), got {one!r}")
        if replace(one, eps=0.0) != replace(threats[0], eps=0.0):
            raise ValueError(f"threats must differ in nothing but their radius, got {threats[0]} and {one}")
        if not 0 < one.eps < math.inf:
            raise ValueError(f"an audit needs a positive and finite radius, got eps={one.eps}")
    if len({one.eps for one in threats}) != len(threats):
        raise ValueError(f"threats must have different radii, got {[one.eps for one in threats]}")
    return threats


def _hopeless(threat: Threat, pixels: int) -> Threat | None:
    """A radius at which every image can be made plain grey."""
    half = (threat.bounds[1] - threat.bounds[0]) / 2
    if not math.isfinite(half):
        return None
    length = {"linf": 1.0, "l2": math.sqrt(pixels), "l1": float(pixels)}[threat.norm]
    return replace(threat, eps=max(threat.eps, half * length))


def _named(level: Level, transfer_from: Mapping[str, nn.Module]) -> str:
    """What determines the battery."""
    sources = {name: ModelIdentity.of(net, name).sha256[:12] for name, net in transfer_from.items()}
    return f"{level!r}, transfer_from={sources}"


def _eps(record: Record) -> float:
    assert record.threat is not None
    return record.threat.eps
