"""Which trainings and measurements an experiment needs, and which of them are still to be done."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advbnn.defenses.profiles import DEFENSES
from advbnn.errors import ArgumentError, RunError, positive_whole, unknown, whole
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.fast.compiling import ENGINES
from advbnn.paper.experiment import EXPERIMENTS, RUNS, Experiment, Run, source
from advbnn.paper.measurement import Measurement, Request
from advbnn.paper.measurements import MEASUREMENTS, NO_AUDIT
from advbnn.training.config import Config
from advbnn.training.run_folder import CONFIG, MODEL, stored_config


@dataclass(frozen=True)
class Plan:
    """The work of a reproduction, done or not; `left_out` is what was requested and cannot be made, with reasons."""

    experiment: Experiment
    out: Path
    runs: tuple[Run, ...]
    measurements: tuple[Measurement, ...]
    left_out: tuple[str, ...] = ()

    def pending_runs(self) -> list[Run]:
        """The unfinished trainings whose networks are still to be measured."""
        needed = {run.label for measurement in self.pending() for run in measurement.runs}
        return [run for run in self.runs if run.label in needed and not finished(self.folder(run), run.config)]

    def pending(self) -> list[Measurement]:
        """The measurements that are not complete."""
        return [one for one in self.measurements if not one.done(self.experiment, self.out)]

    def folder(self, run: Run) -> Path:
        return self.out / RUNS / run.label


def make_plan(
    experiment: Experiment,
    out: Path,
    names: Sequence[str] = EXPERIMENTS,
    *,
    defenses: Sequence[str],
    seeds: int = 1,
    first_seed: int = 0,
    audit: str | None = None,
    root: str | None = None,
    engine: str = "auto",
) -> Plan:
    """Returns the trainings and measurements that the named experiments need, with `seeds` trainings per defence.

    Their seeds count from `first_seed`.

    `audit` is the level of the audit: the protocol's when None, `"none"` for no audit.
    """
    level = experiment.protocol.audit if audit is None else audit
    for argument, given, known in (
        ("experiment", names, (*EXPERIMENTS, "all")),
        ("defenses", defenses, DEFENSES),
        ("audit", [level], (*LEVELS, NO_AUDIT)),
        ("engine", [engine], ENGINES),
    ):
        for name in set(given) - set(known):
            raise unknown(argument, name, known)
    positive_whole("seeds", seeds)
    whole("first_seed", first_seed, 0)
    if not defenses or len(set(defenses)) < len(defenses):
        raise ArgumentError(f"defenses must be distinct names of {', '.join(DEFENSES)}, got {','.join(defenses)!r}")
    numbers = range(first_seed, first_seed + seeds)
    runs = [experiment.run(defense, seed, root=root, engine=engine) for defense in defenses for seed in numbers]
    request = Request(experiment=experiment, names=names, runs=runs, audit=level)
    for key in experiment.unused_settings(defenses):
        request.left_out.append(f"--set {key}: none of the chosen defences has this setting")
    kinds = [kind for kind in MEASUREMENTS if set(kind.experiments) & set(names)]
    measurements = [one for kind in kinds for one in kind.requested(request)]
    if not measurements:
        raise ArgumentError(f"nothing to do: {'; '.join(request.left_out)}")
    used = {run.label: run for measurement in measurements for run in measurement.runs}
    ordered = [run for run in runs if run.label in used]
    further = [run for run in used.values() if run not in ordered]
    return Plan(experiment, out, (*ordered, *further), tuple(measurements), tuple(request.left_out))


def finished(folder: Path, config: Config) -> bool:
    """Whether a folder holds the finished run of these settings; a run with other settings is refused."""
    if not (folder / CONFIG).exists():
        return False
    old, new = (replace(each, data=source(each.data)) for each in (stored_config(folder), config))
    if difference := old.difference(new):
        raise RunError(
            f"{folder} holds a run with other settings: {difference}; remove it, or give --out another folder"
        )
    return (folder / MODEL).exists()
