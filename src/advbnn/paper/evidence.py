"""The measurements of a reproduction by defence, attack and radius; trainings of a defence are averaged."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from advbnn.defenses.profiles import DEFENSES
from advbnn.evaluation.accuracy import CLEAN
from advbnn.evaluation.records import Record, Records
from advbnn.evaluation.transfer import affinity
from advbnn.paper.experiment import BESIDE, RECORDS, RUNS, Experiment, check_beside, stored
from advbnn.paper.number import Number
from advbnn.paper.protocol import AUTHORS, RANDOM
from advbnn.paper.published import LATER, table1
from advbnn.report.audited import at_most, worst_cases
from advbnn.training.run_folder import FACTS, METRICS, read_facts, read_metrics


@dataclass(frozen=True)
class Speed:
    """The size of a network, and the highest training speed that its run logged."""

    parameters: int
    examples_per_second: float


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that a reproduction has measured so far, and the rows of Table 1 for the same data, if any.

    `speeds` are by label; `borrowed` are defences of another reproduction, with the name of its folder.
    """

    experiment: Experiment
    records: Records
    paper: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    borrowed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, out: Path) -> "Evidence":
        """The evidence in the folder of a reproduction, and in the one it is compared with."""
        (experiment, facts), own = stored(out), cls._of_folder(out)
        if BESIDE not in facts:
            return own
        other = out / facts[BESIDE]
        check_beside(experiment, other)
        return own.beside(cls._of_folder(other), other.resolve().name)

    @classmethod
    def _of_folder(cls, out: Path) -> "Evidence":
        experiment, facts = stored(out)
        files = sorted((out / RECORDS).glob("*.json"), key=_seed_and_name)
        kept: dict[tuple[Any, ...], Record] = {}
        for record in chain.from_iterable(map(Records.load, files)):
            kept.setdefault(record.key, record)
        paper = table1(experiment.data, int(facts.get("test_images", 0)))
        return cls(experiment=experiment, records=Records(kept.values()), paper=paper, speeds=_speeds(out))

    def beside(self, other: "Evidence", name: str) -> "Evidence":
        """Adds the defences that only `other` measured, without its transferred attacks."""
        mine = {defense for r in self.records if not _for_transfer(r) and (defense := _defense(r.model.label))}
        lent = [r for r in other.records if not _for_transfer(r) and _defense(r.model.label) not in (*mine, None)]
        return replace(
            self,
            records=Records([*self.records, *lent]),
            speeds={**{k: v for k, v in other.speeds.items() if _defense(k) not in mine}, **self.speeds},
            borrowed={defense: name for defense in DEFENSES if any(_defense(r.model.label) == defense for r in lent)},
        )

    @cached_property
    def radii(self) -> tuple[float, ...]:
        """The radii of Table 1 for this data, without 0."""
        return self.experiment.protocol.table_radii

    def clean(self, defense: str) -> Number | None:
        return self.authors(defense, 0.0)

    def authors(self, defense: str, eps: float) -> Number | None:
        return self._on_curve(defense, AUTHORS, eps)

    def averaged(self, defense: str, eps: float) -> Number | None:
        """The accuracy under averaged gradients; for deterministic networks that is the authors' attack."""
        random = defense in RANDOM and eps > 0
        return self._on_curve(defense, self.experiment.protocol.averaged if random else AUTHORS, eps)

    def worst(self, defense: str, eps: float) -> Number | None:
        """The worst-case accuracy of the audit; by its old rule, the part that is certain (see `by_old_rule`)."""
        found = self._audited(defense, eps)
        return Number.of(found) if found else None

    def worst_at_most(self, defense: str, eps: float) -> Number | None:
        """The same with the inconclusive images of audits by the old rule counted as correct: an upper bound."""
        found = [at_most(record) or record for record in self._audited(defense, eps)]
        return Number.of(found) if found else None

    def paper_says(self, defense: str, eps: float) -> float | None:
        """The paper's own number, in %."""
        return dict(zip((0.0, *self.radii), self.paper.get(defense, ()), strict=False)).get(eps)

    @cached_property
    def later(self) -> Mapping[str, tuple[float, ...]]:
        """What later work reports under averaged gradients, at the radii except 0."""
        return LATER.get(self.experiment.data, {}) if self.paper else {}

    @cached_property
    def affinity(self) -> dict[str, dict[str, float | None]]:
        """rho of eq. 17 for all pairs of defences; empty if not measured."""
        pairs = self.records.where(kind="transfer", curve="")
        cleans = self.records.where(kind="clean", name=CLEAN, curve="")
        return affinity(pairs + cleans) if pairs and cleans else {}

    def curve(self, over: str, eps: float) -> dict[float, Number]:
        """The accuracy of Adv-BNN over `"ensemble"` or `"steps"` at a radius, by position.

        Of its first training; of the first whose records say which images were correct, if there are any.
        """
        of_all = [r for r in self.records.where(curve=over) if _is(r, "adv_bnn") and r.radius == eps]
        chosen = min(((not r.outcomes, r.model.label) for r in of_all), default=None)
        found = {r.at or 0.0: r for r in of_all if (not r.outcomes, r.model.label) == chosen}
        return {at: Number.of([found[at]]) for at in sorted(found)}

    def alpha(self, name: str) -> dict[float, Number]:
        """The accuracy of Adv-BNN under the named attack, or clean, by decreasing alpha."""
        found = {r.at or 0.0: r for r in self.records.where(curve="alpha", name=name)}
        return {at: Number.of([found[at]]) for at in sorted(found, reverse=True)}

    def lipschitz(self, defense: str, part: str) -> Mapping[str, Any] | None:
        """The details of the local Lipschitz value on `"train"` or `"test"` images."""
        found = [r for r in self.records.where(kind="lipschitz", name=part) if _is(r, defense)]
        return found[0].details if found else None

    @cached_property
    def measured(self) -> list[str]:
        """The defences with any accuracy, in the paper's order."""
        audited = [name for name in DEFENSES if any(_is(record, name) for record in self._worst_cases)]
        return [name for name in DEFENSES if name in audited or self.clean(name) is not None]

    @cached_property
    def _worst_cases(self) -> Records:
        return worst_cases(self.records)

    def _audited(self, defense: str, eps: float) -> list[Record]:
        return [r for r in self._worst_cases if _is(r, defense) and r.radius == eps]

    def _on_curve(self, defense: str, name: str, eps: float) -> Number | None:
        found = [r for r in self.records.where(curve="radius", name=name, at=eps) if _is(r, defense)]
        return Number.of(found) if found else None


def _is(record: Record, defense: str) -> bool:
    return re.fullmatch(rf"{defense}(-seed\d+)?", record.model.label) is not None


def _defense(label: str) -> str | None:
    """The defence of the network with this label."""
    name = label.partition("-")[0]
    return name if name in DEFENSES else None


def _for_transfer(record: Record) -> bool:
    """Whether the affinity is computed from it, possibly with networks of several folders."""
    return record.kind == "transfer" or (record.kind == "clean" and not record.curve)


def _speeds(out: Path) -> dict[str, Speed]:
    found = {}
    for metrics in sorted((out / RUNS).glob(f"*/{METRICS}")):
        lines = read_metrics(metrics)
        if lines and (metrics.parent / FACTS).exists():
            fastest = max(line["examples_per_second"] for line in lines)
            found[metrics.parent.name] = Speed(read_facts(metrics.parent)["model"]["parameters"], fastest)
    return found


def _seed_and_name(file: Path) -> tuple[int, str]:
    """The first training comes first, whatever else the name of its file has."""
    seed = re.search(r"-seed(\d+)", file.stem)
    return (int(seed[1]) if seed else 0), file.name
