"""Which trainings and measurements an experiment needs, and which of them are there already."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advbnn.defenses.config_io import to_table
from advbnn.defenses.profiles import DEFENSES
from advbnn.errors import ArgumentError, ConfigError, RunError, unknown
from advbnn.evaluation.accuracy import CLEAN
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.records import Records
from advbnn.paper.experiment import EXPERIMENTS, Experiment, Run, source
from advbnn.paper.protocol import AUTHORS
from advbnn.training.config import Config
from advbnn.training.run_folder import CONFIG, MODEL

RUNS, RECORDS = "runs", "records"

RANDOM = ("rse", "bnn", "adv_bnn")
"""The defences whose networks are random; for the others nothing is averaged."""

NO_AUDIT = "none"

Point = tuple[str, str, str, float, float]
"""A record that is to be made: label of the model, name, curve and place on it, and radius."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Records that are made together and kept in one file.

    Attributes:
        what: radius, averaged, audit, transfer, ensemble, steps, lipschitz or alpha.
        runs: the networks that it needs.
        radii: the radii that it is made at.
        level: of an audit.
    """

    what: str
    runs: tuple[Run, ...]
    radii: tuple[float, ...]
    level: str = ""

    @property
    def name(self) -> str:
        """That of its file."""
        return self.what if self.what == "transfer" else f"{self.what}-{self.runs[0].label}"

    def points(self, experiment: Experiment) -> set[Point]:
        """The records that it makes."""
        protocol, label = experiment.protocol, self.runs[0].label
        match self.what:
            case "radius":
                return {(label, AUTHORS, "radius", eps, eps) for eps in self.radii}
            case "averaged":
                return {(label, protocol.averaged, "radius", eps, eps) for eps in self.radii}
            case "audit":
                return {(label, self.level, "", 0.0, eps) for eps in self.radii}
            case "transfer":
                labels, (radius,) = [run.label for run in self.runs], self.radii
                pairs = {(target, f"from {source}", "", 0.0, radius) for source in labels for target in labels}
                return pairs | {(label, CLEAN, "", 0.0, 0.0) for label in labels}
            case "ensemble":
                names = {eps: AUTHORS if eps else CLEAN for eps in self.radii}
                return {(label, names[eps], "ensemble", float(m), eps) for eps in names for m in protocol.sizes}
            case "steps":
                return {(label, AUTHORS, "steps", float(k), eps) for eps in self.radii for k in protocol.steps}
            case "lipschitz":
                return {(label, name, "", 0.0, self.radii[0]) for name in ("train", "test")}
            case "alpha":
                alpha, (radius,) = self.runs[0].config.defense.objective.alpha, self.radii
                radii = {CLEAN: 0.0, AUTHORS: radius, protocol.averaged: radius}
                return {(self.runs[0].defense, name, "alpha", alpha, eps) for name, eps in radii.items()}
        raise unknown("measurement", self.what, ())

    def done(self, experiment: Experiment, out: Path) -> bool:
        """Whether all its records are there, and none is older than the network that it is of."""
        file = self.file(out)
        if not file.exists():
            return False
        models = [out / RUNS / run.label / MODEL for run in self.runs]
        if any(model.exists() and model.stat().st_mtime > file.stat().st_mtime for model in models):
            return False
        return self.points(experiment) <= _points(Records.load(file))

    def file(self, out: Path) -> Path:
        """Where its records are kept."""
        return out / RECORDS / f"{self.name}.json"


def _points(records: Records) -> set[Point]:
    return {(r.model.label, r.name, r.curve, r.at or 0.0, 0.0 if r.threat is None else r.threat.eps) for r in records}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of a reproduction.

    Attributes:
        experiment: what is reproduced.
        out: the folder of it all.
        runs: the trainings that are needed, finished or not.
        measurements: the measurements, made or not.
        left_out: what was asked for and cannot be made, and why.
    """

    experiment: Experiment
    out: Path
    runs: tuple[Run, ...]
    measurements: tuple[Measurement, ...]
    left_out: tuple[str, ...] = ()

    def pending_runs(self) -> list[Run]:
        """The trainings that are not finished, of networks that something is still to be measured of."""
        needed = {run.label for measurement in self.pending() for run in measurement.runs}
        return [run for run in self.runs if run.label in needed and not finished(self.folder(run), run.config)]

    def pending(self) -> list[Measurement]:
        """The measurements that are not made."""
        return [one for one in self.measurements if not one.done(self.experiment, self.out)]

    def folder(self, run: Run) -> Path:
        """Where a training is kept."""
        return self.out / RUNS / run.label


def make_plan(
    experiment: Experiment,
    out: Path,
    names: Sequence[str] = EXPERIMENTS,
    *,
    defenses: Sequence[str],
    seeds: int = 1,
    audit: str | None = None,
    root: str | None = None,
    engine: str = "auto",
) -> Plan:
    """What has to be there for the experiments to be complete.

    Args:
        experiment: what is reproduced.
        out: the folder of it all.
        names: the experiments.
        defenses: those to train.
        seeds: how many trainings of each.
        audit: the level of the audit; the protocol's when None, `"none"` for no audit.
        root: where the files of the data set are.
        engine: how training steps run.
    """
    for name in names:
        if name not in EXPERIMENTS:
            raise unknown("experiment", name, [*EXPERIMENTS, "all"])
    if seeds < 1:
        raise ArgumentError(
            f"seeds must be how many trainings of each defence there are to be, at least 1; got {seeds}"
        )
    level = experiment.protocol.audit if audit is None else audit
    if level not in (*LEVELS, NO_AUDIT):
        raise unknown("audit", level, [*LEVELS, NO_AUDIT])
    for defense in defenses:
        if defense not in DEFENSES:
            raise unknown("defenses", defense, DEFENSES)
    if not defenses or len(set(defenses)) < len(defenses):
        raise ArgumentError(
            f"defenses must be different ones of {', '.join(DEFENSES)}, with commas between them; got "
            f"{','.join(defenses)!r}"
        )
    made = {
        (defense, seed): experiment.run(defense, seed, root=root, engine=engine)
        for defense in defenses
        for seed in range(seeds)
    }
    first = {run.defense: run for (_, seed), run in made.items() if seed == 0}
    protocol = experiment.protocol
    measurements: list[Measurement] = []
    left_out = [f"--set {key}: none of the chosen defences has it" for key in experiment.idle_settings(defenses)]

    def lacking(name: str, *needed: str) -> bool:
        missing = [defense for defense in needed if defense not in first]
        if missing:
            left_out.append(f"{name}: it needs {', '.join(missing)}, which --defenses leaves out")
        return bool(missing)

    if "table1" in names or "fig2" in names:
        radii = protocol.radii if "fig2" in names else (0.0, *protocol.table_radii)
        measurements += [Measurement(what="radius", runs=(run,), radii=radii) for run in made.values()]
    if "table1" in names:
        random = [run for run in made.values() if run.defense in RANDOM]
        measurements += [Measurement(what="averaged", runs=(run,), radii=protocol.table_radii) for run in random]
        if level != NO_AUDIT:
            measurements += [
                Measurement(what="audit", runs=(run,), radii=protocol.audit_radii, level=level) for run in made.values()
            ]
    if "fig3" in names and len(first) < 2:
        left_out.append("fig3: it needs two defences or more")
    elif "fig3" in names:
        measurements.append(Measurement(what="transfer", runs=tuple(first.values()), radii=(protocol.transfer_radius,)))
    if "fig4" in names and not lacking("fig4", "adv_bnn"):
        run = (first["adv_bnn"],)
        measurements.append(Measurement(what="ensemble", runs=run, radii=(0.0, *protocol.study_radii)))
        measurements.append(Measurement(what="steps", runs=run, radii=protocol.study_radii))
    if "lipschitz" in names:
        shown = [first[name] for name in ("adv", "adv_bnn") if name in first]
        radius = (_training_radius(shown[0]),) if shown else ()
        measurements += [Measurement(what="lipschitz", runs=(run,), radii=radius) for run in shown]
        lacking("lipschitz", "adv", "adv_bnn")
    further: list[Run] = []
    if "alpha" in names and not lacking("alpha", "adv_bnn"):
        further = [
            experiment.run("adv_bnn", factor=factor, root=root, engine=engine) for factor in protocol.alpha_factors
        ]
        measurements += [
            Measurement(what="alpha", runs=(run,), radii=(protocol.study_radii[1],))
            for run in (first["adv_bnn"], *further)
        ]
    if not measurements:
        raise ArgumentError(f"there is nothing to make: {'; '.join(left_out)}")
    used = {run.label for measurement in measurements for run in measurement.runs}
    runs = tuple(run for run in (*made.values(), *further) if run.label in used)
    return Plan(experiment=experiment, out=out, runs=runs, measurements=tuple(measurements), left_out=tuple(left_out))


def finished(folder: Path, config: Config) -> bool:
    """Whether a folder holds the finished run of these settings, by whatever command it was made.

    Raises:
        RunError: it holds a run with other settings.
    """
    if not (folder / CONFIG).exists():
        return False
    try:
        there = Config.from_run((folder / CONFIG).read_text(encoding="utf-8"))
    except ConfigError as error:
        raise RunError(
            f"{folder / CONFIG} cannot be read: {error}; remove the run, or give --out another folder"
        ) from None
    if _decisive(there) != _decisive(config):
        raise RunError(
            f"{folder} holds a run with other settings: {_difference(there, config)}; remove it, or give "
            "--out another folder"
        )
    return (folder / MODEL).exists()


def _decisive(config: Config) -> Config:
    """Without the settings that are a matter of the machine."""
    plain = Config()
    return replace(
        config,
        data=source(config.data),
        root=None,
        cache=None,
        engine=plain.engine,
        log_every=plain.log_every,
        save_every=plain.save_every,
        tensorboard=plain.tensorboard,
    )


def _difference(there: Config, wanted: Config) -> str:
    old, new = (dict(_flat(to_table(_decisive(config)))) for config in (there, wanted))
    key = next((key for key in [*old, *new] if old.get(key) != new.get(key)), None)
    if key is None:
        return "see its config.toml"
    return f"{key.removeprefix('defense.')} = {old.get(key)!r} there, {new.get(key)!r} now"


def _flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield path + key, value


def _training_radius(run: Run) -> float:
    attack = run.config.defense.attack
    return attack.threat.eps if attack is not None else 0.0
