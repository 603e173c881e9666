"""What every measurement of a reproduction has: its networks, the records that it makes, and how it runs."""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn

from advbnn.data import Splits
from advbnn.evaluation.options import Options
from advbnn.evaluation.records import Records
from advbnn.machine.files import file_digest, locked_file, read_json, write_atomically
from advbnn.paper.experiment import RECORDS, RUNS, WEIGHTS, Experiment, Run
from advbnn.paper.protocol import RANDOM, Protocol
from advbnn.training.run_folder import MODEL

Point = tuple[str, str, float, float]
"""A record to be made: its name, curve, position on the curve, and radius."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The requested experiments, the runs of each defence by seed, and the level of the audit or `"none"`.

    Each kind of measurement says what it contributes; `left_out` collects what cannot be made, with the reason.
    """

    experiment: Experiment
    names: Collection[str]
    runs: Sequence[Run]
    audit: str
    left_out: list[str] = field(default_factory=list)

    @property
    def protocol(self) -> Protocol:
        return self.experiment.protocol

    @property
    def first(self) -> dict[str, Run]:
        firsts = {run.defense: run for run in reversed(self.runs)}
        return {run.defense: firsts[run.defense] for run in self.runs}

    def chosen(self, name: str, *defenses: str) -> list[Run]:
        """The first trainings of the defences that an experiment needs; notes which are missing."""
        missing = [defense for defense in defenses if defense not in self.first]
        note = f"{name}: needs {', '.join(missing)}, missing from --defenses"
        if missing and note not in self.left_out:
            self.left_out.append(note)
        return [self.first[defense] for defense in defenses if defense in self.first]


@dataclass(frozen=True, kw_only=True)
class Session:
    """What a measurement runs on: trained networks by label, the data, and the options of evaluations."""

    protocol: Protocol
    models: Mapping[str, nn.Module]
    splits: Splits[Any]
    options: Options

    def on(self, limit: int | None, **changes: Any) -> Any:
        """The options for the first `limit` test images; for all of them when None."""
        everything = limit is None or limit >= len(self.splits.test)
        return {**self.options, "rows": None if everything else range(limit or 0), **changes}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds per image for a gradient and for a forward pass of one defence, on this machine."""

    gradient: float
    forward: float


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the cost of a measurement is computed from: costs by defence, and the size of the test set."""

    protocol: Protocol
    costs: Mapping[str, Cost]
    test_images: int

    def images(self, limit: int | None) -> int:
        return min(limit or self.test_images, self.test_images)

    def samples(self, run: Run) -> int:
        """Forward passes per prediction."""
        return self.protocol.samples if run.defense in RANDOM else 1

    def seconds(self, run: Run, gradients: float, predictions: int = 1) -> float:
        """Seconds per image for so many gradients and predictions."""
        cost = self.costs[run.defense]
        return gradients * cost.gradient + predictions * self.samples(run) * cost.forward


@dataclass(frozen=True, kw_only=True)
class Measurement(ABC):
    """Records that are made together and kept in one file, from trained networks and radii of the attack."""

    what: ClassVar[str]
    experiments: ClassVar[tuple[str, ...]]

    runs: tuple[Run, ...]
    radii: tuple[float, ...]

    @classmethod
    @abstractmethod
    def requested(cls, request: Request) -> list[Self]:
        """The measurements of this kind that a request for one of its experiments needs."""

    @abstractmethod
    def points(self, protocol: Protocol) -> set[Point]:
        """The records that it makes of each network."""

    @abstractmethod
    def run(self, session: Session) -> None:
        """Makes the records that are missing."""

    @abstractmethod
    def cost(self, budget: Budget) -> float:
        """An estimate of its duration in seconds."""

    @property
    def network(self) -> Run:
        """The run that it measures; the first of several."""
        return self.runs[0]

    @property
    def name(self) -> str:
        return f"{self.what}-{self.network.label}"

    @property
    def label(self) -> str:
        return self.network.label

    def file(self, out: Path) -> Path:
        return out / RECORDS / f"{self.name}.json"

    def done(self, experiment: Experiment, out: Path) -> bool:
        """Whether all its records exist and were made with the weights that are there."""
        file = self.file(out)
        if not file.exists():
            return False
        noted = _noted(out).get(self.name, {})
        if any(noted.get(label) != digest for label, digest in self._digests(out).items()):
            return False
        labels = [self.label, *(run.label for run in self.runs[1:])]
        found = {(r.model.label, r.name, r.curve, r.at or 0.0, r.radius) for r in Records.load(file)}
        return {(label, *point) for label in labels for point in self.points(experiment.protocol)} <= found

    def note_weights(self, out: Path) -> None:
        """Note that its records hold for the weights that are there."""
        with locked_file(out / WEIGHTS):
            noted = _noted(out) | {self.name: self._digests(out)}
            write_atomically(out / WEIGHTS, (json.dumps(noted, indent=1, sort_keys=True) + "\n").encode())

    def _digests(self, out: Path) -> dict[str, str]:
        """The SHA-256 of the weights of each network; those that are not there were measured elsewhere."""
        models = {run.label: out / RUNS / run.label / MODEL for run in self.runs}
        return {label: _digest(model) for label, model in models.items() if model.exists()}


def _noted(out: Path) -> dict[str, dict[str, str]]:
    """For each measurement, the weights that it was made with."""
    noted: dict[str, dict[str, str]] = read_json(out / WEIGHTS) if (out / WEIGHTS).exists() else {}
    return noted


def _digest(model: Path) -> str:
    found = model.stat()
    return _digest_of(model, found.st_ino, found.st_size, found.st_mtime_ns)


@cache
def _digest_of(model: Path, *unchanged: int) -> str:
    return file_digest(model)
