"""How long it will take: a few steps of every kind are timed on this very machine, and multiplied."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from advbnn.bayes.prediction import predict
from advbnn.data import Splits, to_float
from advbnn.distributed import World
from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.fast.acceleration import accelerate
from advbnn.paper.experiment import Run
from advbnn.paper.plan import RANDOM, Measurement, Plan
from advbnn.paper.protocol import Protocol
from advbnn.training.run_folder import METRICS
from advbnn.training.state import TrainingState

_BATCH = 250
_STEPS_TIMED = 3
_LONG = 2.0
"""Seconds; an estimate need not be better than what a call of this length tells."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one defence costs here, in seconds.

    Attributes:
        training: one run from beginning to end.
        gradient: one gradient of one image, as an attack takes it.
        forward: one answer to one image.
    """

    training: float
    gradient: float
    forward: float


def costs(plan: Plan, splits: Splits[Any], device: str) -> dict[str, Cost]:
    """For each defence that something is left to do of, what its work costs on this machine."""
    training = {run.defense: run for run in plan.pending_runs()}
    needed = {run.defense: run for one in plan.pending() for run in one.runs} | training
    return {name: _cost(run, splits, device, plan, name in training) for name, run in needed.items()}


def task_seconds(plan: Plan, known: Mapping[str, Cost], test_images: int) -> tuple[dict[str, float], dict[str, float]]:
    """The seconds of each pending training by its label, and of each pending measurement by its name."""
    trainings = {run.label: known[run.defense].training * _share_left(plan, run) for run in plan.pending_runs()}
    measurements = {
        one.name: measurement_seconds(one, plan.experiment.protocol, known, test_images) for one in plan.pending()
    }
    return trainings, measurements


def measurement_seconds(one: Measurement, protocol: Protocol, known: Mapping[str, Cost], test_images: int) -> float:
    """The time of a measurement by the gradients and answers that it asks for."""
    cost = known[one.runs[0].defense]
    random = one.runs[0].defense in RANDOM
    draws = protocol.samples if random else 1
    everything, averaged, study = (
        min(n or test_images, test_images) for n in (protocol.images, protocol.averaged_images, protocol.study_images)
    )
    attacks = sum(eps > 0 for eps in one.radii)
    match one.what:
        case "radius":
            return everything * (20 * attacks * cost.gradient + draws * len(one.radii) * cost.forward)
        case "averaged":
            return averaged * attacks * (20 * protocol.eot * cost.gradient + draws * cost.forward)
        case "transfer":
            made = sum(20 * known[run.defense].gradient for run in one.runs)
            asked = sum(protocol.samples * known[run.defense].forward for run in one.runs)
            return everything * (made + (len(one.runs) + 1) * asked)
        case "ensemble":
            return study * (20 * attacks * cost.gradient + len(one.radii) * max(protocol.sizes) * cost.forward)
        case "steps":
            asked = draws * len(protocol.steps) * attacks
            return study * (sum(protocol.steps) * attacks * cost.gradient + asked * cost.forward)
        case "lipschitz":
            return 2 * study * ((20 + draws) * cost.gradient + 2 * draws * cost.forward)
        case "alpha":
            plain = everything * (20 * cost.gradient + 2 * draws * cost.forward)
            return plain + averaged * (20 * protocol.eot * cost.gradient + draws * cost.forward)
        case _:
            images = min(protocol.audit_images or test_images, test_images)
            gradients, answers = _audit_passes(one.level, random)
            return images * attacks * (gradients * cost.gradient + answers * cost.forward)


def _audit_passes(level: str, random: bool) -> tuple[float, float]:
    """Roughly the gradients and answers that an audit asks for, for each image; survivors are taken to be half."""
    how = LEVELS[level]
    grid = sum(how.steps) * (sum(how.eot) if random else 1)
    authors = 20 * (1 + how.eot[-1] if random else 1)
    restarts = how.restarts * how.steps[0]
    apgd = how.apgd_steps * (how.apgd_eot if random else 1)
    answers = how.query_eot * (how.square_queries + 0.5 * how.nes_queries) + 15 * 50
    return grid + authors + restarts + apgd * (1 + 0.5 * how.targets), float(answers)


def _cost(run: Run, splits: Splits[Any], device: str, plan: Plan, trains: bool) -> Cost:
    defense, train = run.config.defense, splits.train
    model = defense.build(classes=len(train.classes), shape=train.shape, seed=0).to(device)
    training = 0.0
    if trains:
        steps = defense.schedule.total_epochs * -(-len(train) // defense.batch_size)
        training = steps * (_step_of_metrics(plan.folder(run), defense.batch_size) or _step(run, model, splits, device))
    x, y = next(iter(splits.test.gather([torch.arange(min(_BATCH, len(splits.test)))])))
    x, y = to_float(x).to(device), y.to(device)
    attack = plan.experiment.protocol.authors_attack(plan.experiment.protocol.table_radii[0], steps=2)
    fast = accelerate(model.eval(), run.config.engine)
    gradient = _seconds(lambda: attack(fast, x, y, seed=0), device) / (2 * len(x))
    forward = _seconds(lambda: predict(fast, x, samples=2, seed=0), device) / (2 * len(x))
    return Cost(training=training, gradient=gradient, forward=forward)


def _step(run: Run, model: nn.Module, splits: Splits[Any], device: str) -> float:
    training = TrainingState(
        model, splits.to(device), run.config.defense, 0, run.config.engine, World(), run.config.precision
    )
    model.train()
    x, y = next(training.rest_of_epoch())
    return _seconds(lambda: training.advance(x, y), device, times=_STEPS_TIMED)


def _step_of_metrics(folder: Path, batch_size: int) -> float | None:
    """The time of a step as a run that was begun before has measured it."""
    with suppress(OSError, ValueError, KeyError, IndexError):
        last = json.loads((folder / METRICS).read_text(encoding="utf-8").splitlines()[-1])
        return batch_size / float(last["examples_per_second"])
    return None


def _share_left(plan: Plan, run: Run) -> float:
    with suppress(OSError, ValueError, KeyError, IndexError):
        last = json.loads((plan.folder(run) / METRICS).read_text(encoding="utf-8").splitlines()[-1])
        return max(0.0, 1 - float(last["epoch"]) / run.config.defense.schedule.total_epochs)
    return 1.0


def _seconds(work: Callable[[], object], device: str, times: int = 2) -> float:
    """The mean time of one call, after two that do not count: by then fast forms are made.

    On the CPU, where nothing is made first, the time of a single call if that is long.
    """
    first = _timed(work, device)
    if device == "cpu" and first > _LONG:
        return first
    work()
    return sum(_timed(work, device) for _ in range(times)) / times


def _timed(work: Callable[[], object], device: str) -> float:
    _wait(device)
    begun = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - begun


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
