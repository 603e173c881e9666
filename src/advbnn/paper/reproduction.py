"""Carries out a plan: trains and measures what is missing, and leaves what exists alone."""

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from advbnn.evaluation.options import Options
from advbnn.paper.estimate import estimated_seconds
from advbnn.paper.experiment import RUNS, Experiment, Run
from advbnn.paper.measurement import Measurement, Session
from advbnn.paper.plan import Plan, finished
from advbnn.report import AttackedImage, attacked_images
from advbnn.training.config import load_splits
from advbnn.training.loading import load_trained
from advbnn.training.loop import fit_config
from advbnn.training.run_folder import CONFIG, stored_config
from advbnn.training.tasks import Task

_IMAGES = 2


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A plan, the device of each worker, and the command line that makes the records again."""

    plan: Plan
    devices: list[str]
    command: str

    def estimate(self) -> dict[str, float]:
        """The estimated seconds of every task that is left, by name."""
        return estimated_seconds(self.plan, load_splits(self.plan.runs[0].config), self.devices[0])

    def tasks(self, seconds: dict[str, float] | None = None) -> list[Task]:
        """The trainings and measurements that are left, with their estimated seconds if known."""
        plan, known = self.plan, seconds or {}
        runs = plan.pending_runs()
        tasks = [Task(run.task, train, (run, plan.folder(run)), seconds=known.get(run.task)) for run in runs]
        for one in plan.pending():
            needs = tuple(run.task for run in one.runs)
            arguments = (one, plan.experiment, plan.out, self.command)
            tasks.append(Task(one.name, measure, arguments, needs, known.get(one.name)))
        return tasks

    def images(self, labels: Container[str]) -> list[AttackedImage]:
        """The first test images under attack, for each trained defence with one of these labels."""
        protocol, shown = self.plan.experiment.protocol, []
        attack = protocol.averaged_attack(protocol.table_radii[1])
        for run in self.plan.runs:
            folder = self.plan.folder(run)
            if run.label == run.defense and run.label in labels and finished(folder, run.config):
                model, test = load_trained(folder, device=self.devices[0]).model, load_splits(run.config).test
                rows = range(min(_IMAGES, len(test)))
                shown += attacked_images(model, test, attack, rows, name=protocol.averaged, label=run.label)
        return shown


def train(device: str, run: Run, folder: Path) -> None:
    """Trains a network, or resumes its training; does nothing if it is finished."""
    config = run.config
    if finished(folder, config):
        return
    if (folder / CONFIG).exists():
        config = stored_config(folder)  # perhaps started by another command: its settings continue
    fit_config(config, load_splits(config), out=folder, resume=True, device=device)


def measure(device: str, measurement: Measurement, experiment: Experiment, out: Path, command: str) -> None:
    protocol, network = experiment.protocol, measurement.network
    options = Options(
        samples=protocol.samples,
        seeds=1,
        batch_size=protocol.batch_size,
        label=network.label,
        out=measurement.file(out),
        progress=True,
        command=command,
        engine=network.config.engine,
    )
    splits, models = load_splits(network.config), {}
    for run in measurement.runs:
        trained = load_trained(out / RUNS / run.label, device=device)
        trained.check_classes(splits.train)
        models[run.label] = trained.model
    measurement.run(Session(protocol=protocol, models=models, splits=splits, options=options))
    measurement.note_weights(out)  # the records hold for these weights, even if none was missing
