"""A reproduction from the plan to the report: what is missing is done, what is there is left alone."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from advbnn.paper import work
from advbnn.paper.estimate import costs, task_seconds
from advbnn.paper.plan import Plan, finished
from advbnn.paper.workers import Outcome, Task, perform
from advbnn.report import AttackedImage, attacked_images
from advbnn.training.loading import load_trained

_IMAGES = 2


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A plan and where it is carried out.

    Args:
        plan: what has to be there in the end.
        devices: one for each worker.
        threads: of each worker on the CPU.
        command: what makes the records again.
    """

    plan: Plan
    devices: Sequence[str]
    threads: int
    command: str

    def seconds(self) -> tuple[dict[str, float], dict[str, float]]:
        """An estimate for every training and measurement that is left to do."""
        splits = work.load_splits(self.plan.runs[0].config)
        known = costs(self.plan, splits, self.devices[0])
        return task_seconds(self.plan, known, len(splits.test))

    def tasks(self, trainings: Mapping[str, float], measurements: Mapping[str, float]) -> list[Task]:
        """What is left to do."""
        plan = self.plan
        made = [
            Task(
                name=_training(run.label),
                work=work.train,
                arguments=(run, plan.folder(run)),
                seconds=trainings.get(run.label),
            )
            for run in plan.pending_runs()
        ]
        return made + [
            Task(
                name=one.name,
                work=work.measure,
                arguments=(one, plan.experiment, plan.out, self.command),
                needs=tuple(_training(run.label) for run in one.runs),
                seconds=measurements.get(one.name),
            )
            for one in plan.pending()
        ]

    def carry_out(
        self, trainings: Mapping[str, float], measurements: Mapping[str, float], say: Callable[[str], None]
    ) -> Outcome:
        """Does all that is left to do; see `workers.perform`."""
        return perform(self.tasks(trainings, measurements), self.devices, threads=self.threads, say=say)

    def images(self, labels: Container[str]) -> list[AttackedImage]:
        """The first test images under attack, for each defence of the given labels that is trained."""
        protocol, shown = self.plan.experiment.protocol, []
        for run in self.plan.runs:
            folder = self.plan.folder(run)
            if run.label != run.defense or run.label not in labels or not finished(folder, run.config):
                continue
            trained = load_trained(folder, device=self.devices[0])
            attack = protocol.averaged_attack(protocol.table_radii[1])
            test = work.load_splits(run.config).test
            shown += attacked_images(
                trained.model, test, attack, range(_IMAGES), name=protocol.averaged, label=run.label
            )
        return shown


def _training(label: str) -> str:
    return f"training {label}"


def default_folder(title: str) -> Path:
    """Where a reproduction goes if nothing is said."""
    return Path("reproduced") / title
