"""What has been measured, asked by defence, attack and radius; several trainings of a defence count as one."""

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from advbnn.defenses.profiles import DEFENSES
from advbnn.evaluation.accuracy import CLEAN
from advbnn.evaluation.identity import DataIdentity, ranges
from advbnn.evaluation.intervals import clopper_pearson
from advbnn.evaluation.records import Record, Records
from advbnn.evaluation.transfer import affinity
from advbnn.paper.experiment import BESIDE, Experiment, check_beside, stored
from advbnn.paper.plan import RANDOM, RECORDS, RUNS
from advbnn.paper.protocol import AUTHORS
from advbnn.paper.published import LATER, table1
from advbnn.report.audited import worst_cases
from advbnn.training.run_folder import FACTS, METRICS

_STUDENT = (0.0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""By the number of trainings: how many standard errors make half of a 95 % interval. A single one has no spread."""


@dataclass(frozen=True)
class Number:
    """An accuracy in %, the mean over the trainings of a defence.

    Attributes:
        mean: the number itself.
        low: lower end of its 95 % interval, by the choice of images.
        high: upper end.
        images: how many it was measured on.
        spread: standard deviation over the trainings; 0 for one.
        trainings: how many there were.
        data: the images.
        right: how often each of them was right, over trainings and seeds; None where records do not say.
    """

    mean: float
    low: float
    high: float
    images: int
    spread: float = 0.0
    trainings: int = 1
    data: DataIdentity | None = None
    right: Tensor | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Number":
        """The number that records of one measurement, one a training, have in common."""
        values = [100 * record.accuracy for record in records]
        known = all(record.outcomes and record.data == records[0].data for record in records)
        return cls(
            mean=statistics.fmean(values),
            low=statistics.fmean(100 * record.interval[0] for record in records),
            high=statistics.fmean(100 * record.interval[1] for record in records),
            images=min(record.n for record in records),
            spread=statistics.stdev(values) if len(values) > 1 else 0.0,
            trainings=len(values),
            data=records[0].data,
            right=torch.stack([record.right for record in records]).mean(0) if known else None,
        )

    def on(self, data: DataIdentity | None) -> "Number":
        """The number on the first images alone, if these are `data` and it is known which were right; else as it is."""
        if self.right is None or self.data is None or data is None or data.n > self.images:
            return self
        if replace(self.data, n=data.n, rows=ranges(range(data.n))) != data or self.data.rows:
            return self
        right = self.right[: data.n]
        low, high = math.floor(right.sum().item()), math.ceil(right.sum().item())
        return replace(
            self,
            mean=100 * right.mean().item(),
            low=100 * clopper_pearson(low, data.n)[0],
            high=100 * clopper_pearson(high, data.n)[1],
            images=data.n,
            data=data,
            right=right,
        )

    @property
    def below(self) -> float:
        """How far the truth may well lie below the mean: by the images, or by the trainings if these vary more."""
        return max(self.mean - self.low, self.by_training)

    @property
    def above(self) -> float:
        """How far it may well lie above."""
        return max(self.high - self.mean, self.by_training)

    @property
    def by_training(self) -> float:
        """Half of Student's 95 % interval: a spread seen in two or three trainings is little known."""
        return _STUDENT[min(self.trainings, len(_STUDENT)) - 1] * self.spread / math.sqrt(self.trainings)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a run says of its training: parameters, and images a second when it was least disturbed by others."""

    parameters: int
    examples_per_second: float


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that a reproduction has found so far.

    Attributes:
        experiment: what is reproduced.
        records: all records.
        paper: the rows of Table 1 for the same data; empty where the paper has none.
        trainings: of the runs, by their labels.
        borrowed: the defences that another reproduction has measured, and its folder's name.
    """

    experiment: Experiment
    records: Records
    paper: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    trainings: Mapping[str, Training] = field(default_factory=dict)
    borrowed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, out: Path) -> "Evidence":
        """What there is in the folder of a reproduction, and in the one that it is to be compared with."""
        experiment, facts = stored(out)
        own = cls._of_folder(out)
        if BESIDE not in facts:
            return own
        check_beside(experiment, out / facts[BESIDE])
        return own.beside(cls._of_folder(out / facts[BESIDE]), (out / facts[BESIDE]).resolve().name)

    @classmethod
    def _of_folder(cls, out: Path) -> "Evidence":
        experiment, facts = stored(out)
        kept: dict[tuple[Any, ...], Record] = {}
        for file in sorted((out / RECORDS).glob("*.json")):
            for record in Records.load(file):
                kept.setdefault(record.key, record)
        return cls(
            experiment=experiment,
            records=Records(kept.values()),
            paper=table1(experiment.data, int(facts.get("test_images", 0))),
            trainings=_trainings(out),
        )

    def beside(self, other: "Evidence", name: str) -> "Evidence":
        """With the defences that only `other` has measured; of attacks from one on another, those of our own alone."""
        mine = {defense for r in self.records if not _for_transfer(r) and (defense := _defense(r.model.label))}
        lent = [r for r in other.records if not _for_transfer(r) and _defense(r.model.label) not in (*mine, None)]
        return replace(
            self,
            records=Records([*self.records, *lent]),
            trainings={**{k: v for k, v in other.trainings.items() if _defense(k) not in mine}, **self.trainings},
            borrowed={defense: name for defense in DEFENSES if any(_defense(r.model.label) == defense for r in lent)},
        )

    @cached_property
    def radii(self) -> tuple[float, ...]:
        """The radii of Table 1 for this data, without 0."""
        return self.experiment.protocol.table_radii

    def clean(self, defense: str) -> Number | None:
        """The accuracy without an attack."""
        return self._number(defense, lambda r: r.curve == "radius" and r.name == AUTHORS and r.at == 0)

    def authors(self, defense: str, eps: float) -> Number | None:
        """The accuracy under the authors' attack."""
        if eps == 0:
            return self.clean(defense)
        return self._number(defense, lambda r: r.curve == "radius" and r.name == AUTHORS and r.at == eps)

    def averaged(self, defense: str, eps: float) -> Number | None:
        """The accuracy under the attack along averaged gradients; with nothing to average it is the authors'."""
        if defense not in RANDOM or eps == 0:
            return self.authors(defense, eps)
        name = self.experiment.protocol.averaged
        return self._number(defense, lambda r: r.curve == "radius" and r.name == name and r.at == eps)

    def worst(self, defense: str, eps: float) -> Number | None:
        """The accuracy in the worst case of the audit."""
        audited = self._worst_cases
        return self._number(defense, lambda r: r.threat is not None and r.threat.eps == eps, audited)

    def undecided(self, defense: str, eps: float) -> float:
        """The share of images, in %, that count as fallen in the worst case since the draws could not decide."""
        found = [r for r in self._worst_cases if _is(r, defense) and _radius(r) == eps]
        judged = sum(r.data.n * len(r.seeds) for r in found)
        return 100 * sum(sum(r.details["inconclusive"]) for r in found) / judged if judged else 0.0

    def paper_says(self, defense: str, eps: float) -> float | None:
        """The paper's own number, in %."""
        if defense not in self.paper:
            return None
        return dict(zip((0.0, *self.radii), self.paper[defense], strict=True)).get(eps)

    @cached_property
    def later(self) -> Mapping[str, tuple[float, ...]]:
        """What later work found along averaged gradients, at the radii but 0; empty where the paper has no numbers."""
        return LATER.get(self.experiment.data, {}) if self.paper else {}

    @cached_property
    def affinity(self) -> dict[str, dict[str, float | None]]:
        """rho of eq. 17 for all pairs of defences; empty where it was not measured."""
        pairs = self.records.where(kind="transfer", curve="")
        cleans = self.records.where(kind="clean", name=CLEAN, curve="")
        return affinity(pairs + cleans) if pairs and cleans else {}

    def curve(self, over: str, eps: float, defense: str = "adv_bnn") -> dict[float, Record]:
        """The records of a curve over `"ensemble"` or `"steps"` at a radius, by their place."""
        found = [r for r in self.records.where(curve=over, label=defense) if _radius(r) == eps and r.at is not None]
        return {r.at: r for r in sorted(found, key=lambda r: r.at or 0.0) if r.at is not None}

    def alpha(self, name: str) -> dict[float, Number]:
        """The accuracy of Adv-BNN under the attack of a name, or clean, by alpha in falling order."""
        found = {r.at: r for r in self.records.where(curve="alpha", name=name) if r.at is not None}
        return {at: Number.of([found[at]]) for at in sorted(found, reverse=True)}

    def steepness(self, defense: str, part: str) -> Mapping[str, Any] | None:
        """The details of the local Lipschitz value on `"train"` or `"test"` images."""
        found = self.records.where(kind="lipschitz", name=part, label=defense)
        return found[0].details if found else None

    @cached_property
    def measured(self) -> list[str]:
        """The defences that there is any accuracy of, in the paper's order."""
        return [name for name in DEFENSES if self.clean(name) is not None or self._any_worst(name)]

    @cached_property
    def _worst_cases(self) -> Records:
        return worst_cases(self.records)

    def _any_worst(self, defense: str) -> bool:
        return any(_is(record, defense) for record in self._worst_cases)

    def _number(
        self, defense: str, fits: Callable[[Record], bool], among: Iterable[Record] | None = None
    ) -> Number | None:
        source = self.records if among is None else among
        found = [record for record in source if _is(record, defense) and fits(record)]
        return Number.of(found) if found else None


def _is(record: Record, defense: str) -> bool:
    return re.fullmatch(rf"{defense}(-seed\d+)?", record.model.label) is not None


def _defense(label: str) -> str | None:
    """The defence that a network of this label has."""
    name = label.partition("-")[0]
    return name if name in DEFENSES else None


def _for_transfer(record: Record) -> bool:
    """Whether the affinity is made of it, for which networks of several folders may have been taken."""
    return record.kind == "transfer" or (record.kind == "clean" and not record.curve)


def _radius(record: Record) -> float:
    return 0.0 if record.threat is None else record.threat.eps


def _trainings(out: Path) -> dict[str, Training]:
    """Of all runs that lie in the folder."""
    found = {}
    for facts in sorted((out / RUNS).glob(f"*/{FACTS}")):
        metrics = facts.parent / METRICS
        if not metrics.exists():
            continue
        # a line without an end is what a kill has left of it
        lines = [line for line in metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]
        speeds = [json.loads(line)["examples_per_second"] for line in lines]
        if speeds:
            parameters = json.loads(facts.read_text())["model"]["parameters"]
            found[facts.parent.name] = Training(parameters=parameters, examples_per_second=max(speeds))
    return found
