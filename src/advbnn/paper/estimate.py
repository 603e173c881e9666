"""Estimates how long a reproduction takes: times a few steps of every kind on this machine and multiplies."""

from typing import Any

import torch
from torch import nn

from advbnn.bayes.prediction import predict
from advbnn.data import Splits, to_float
from advbnn.fast.acceleration import accelerate
from advbnn.machine.processes import World
from advbnn.machine.threads import few_threads
from advbnn.machine.timing import seconds_of
from advbnn.paper.experiment import Run
from advbnn.paper.measurement import Budget, Cost
from advbnn.paper.plan import Plan
from advbnn.paper.protocol import Protocol
from advbnn.training.run_folder import METRICS, read_metrics
from advbnn.training.state import TrainingState

_BATCH = 250
_STEPS_TIMED = 3


def estimated_seconds(plan: Plan, splits: Splits[Any], device: str) -> dict[str, float]:
    """The seconds of each pending training and measurement, by the name of its task."""
    protocol, pending, runs = plan.experiment.protocol, plan.pending(), plan.pending_runs()
    networks = {run.defense: run for one in pending for run in one.runs}
    shape: dict[str, Any] = {"classes": len(splits.train.classes), "shape": splits.train.shape, "seed": 0}
    models = {name: run.config.defense.build(**shape).to(device) for name, run in networks.items()}
    trained = {run.defense: run for run in runs}
    steps = {name: _step_seconds(plan, run, models[name], splits, device) for name, run in trained.items()}
    costs = {name: _cost(run, models[name], protocol, splits, device) for name, run in networks.items()}
    budget = Budget(protocol=protocol, costs=costs, test_images=len(splits.test))
    trainings = {run.task: steps[run.defense] * _steps_left(plan, run, len(splits.train)) for run in runs}
    return trainings | {one.name: one.cost(budget) for one in pending}


def _cost(run: Run, model: nn.Module, protocol: Protocol, splits: Splits[Any], device: str) -> Cost:
    x, y = next(iter(splits.test.gather([torch.arange(min(_BATCH, len(splits.test)))])))
    x, y = to_float(x).to(device), y.to(device)
    attack = protocol.authors_attack(protocol.table_radii[0], steps=2)
    fast = accelerate(model.eval(), run.config.engine)
    with few_threads(model, splits.test.shape, len(x)):
        gradient = seconds_of(lambda: attack(fast, x, y, seed=0), x.device) / (2 * len(x))
        forward = seconds_of(lambda: predict(fast, x, samples=2, seed=0), x.device) / (2 * len(x))
    return Cost(gradient=gradient, forward=forward)


def _step_seconds(plan: Plan, run: Run, model: nn.Module, splits: Splits[Any], device: str) -> float:
    """Seconds per training step: from the metrics of a run that was started before, else timed."""
    defense = run.config.defense
    if history := read_metrics(plan.folder(run) / METRICS):
        return defense.batch_size / float(history[-1]["examples_per_second"])
    training = TrainingState(model, splits.to(device), defense, 0, run.config.engine, World(), run.config.precision)
    model.train()
    x, y = next(training.rest_of_epoch())
    with few_threads(model, splits.train.shape, len(x)):
        return seconds_of(lambda: training.advance(x, y), x.device, calls=_STEPS_TIMED)


def _steps_left(plan: Plan, run: Run, train_images: int) -> float:
    defense, history = run.config.defense, read_metrics(plan.folder(run) / METRICS)
    epochs = defense.schedule.total_epochs - (float(history[-1]["epoch"]) if history else 0.0)
    return max(0.0, epochs) * -(-train_images // defense.batch_size)
