"""Training several modes as one run: each mode is an ordinary training in its own folder.

RUN/config.toml, run.json, log.txt    as of any run
RUN/modes/0, 1, ...                   a run folder for each mode; RUN/modes/trunk for what branches share
RUN/modes/claims                      a lock for each of these trainings
RUN/model.safetensors                 all modes as one network, once they are finished

Any process may train the next mode: the workers of this run, one for each GPU, and the same command with `--resume` on
another machine that sees the folder. Each ends when all modes are finished. A mode whose process was killed is resumed
by the next process that finds it.
"""

import copy
import pickle
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import nn

from advbnn.bayes.modes import Modes
from advbnn.data.streams import Stream
from advbnn.display.progress import ProgressBar, duration
from advbnn.errors import MOST, ArgumentError, RunError
from advbnn.machine.files import locked_folder, write_atomically
from advbnn.machine.processes import ALONE, world
from advbnn.machine.threads import share_of_threads
from advbnn.training.checkpoint import save_weights
from advbnn.training.config import Config
from advbnn.training.fit_result import FitResult
from advbnn.training.interrupts import Interrupted
from advbnn.training.loading import Trained, mean_noise
from advbnn.training.mode_plan import TRUNK, ModePlan
from advbnn.training.mode_run import ModesRun
from advbnn.training.provenance import run_facts
from advbnn.training.run_folder import (
    CONFIG,
    METRICS,
    MODEL,
    MODES,
    NOISE_STD,
    RunFolder,
    is_sound,
    read_metrics,
    stored_config,
    write_sum,
)
from advbnn.training.state import TrainingState
from advbnn.training.tasks import Task, device_list, run_tasks

SECONDS_BETWEEN_LOOKS = 5.0
"""How often a process that waits for the modes of others looks whether they are finished, or free."""


def fit_modes(run: ModesRun, *, resume: bool, device: torch.device | str | None) -> FitResult:
    """`fit` for several modes: the model of the result is a `Modes`."""
    net, defense, plan = run.net, run.defense, run.plan
    plan.check(defense)
    if plan.how == "boosted" and isinstance(run.data.train, Stream):
        raise ArgumentError("modes.how='boosted' needs a training set in memory, not a loader; pass Splits as data")
    run.check_starts()
    if defense.early_stopping is not None and run.data.validation is None:
        # the same for all modes: the examples of one are in no training of another
        run = replace(run, data=run.data.split_validation(fraction=defense.early_stopping.fraction, seed=run.seed))
    place = torch.device(device) if device is not None else next(net.parameters()).device
    if run.out is None:
        results: dict[str, FitResult] = {}
        for name in plan.trainings:
            needed = plan.needed_by(name)
            results[name] = run.train(name, place, None if needed is None else results[needed].model)
        model, noise_std = _combined([results[name] for name in plan.names], plan)
        histories = {name: result.history for name, result in results.items()}
    else:
        _train_all(run, run.out, resume, place)
        trained = run.load()
        model, noise_std = trained.model, trained.noise_std
        histories = {name: read_metrics(run.out / MODES / name / METRICS) for name in plan.trainings}
    steps = {name: history[-1]["step"] if history else 0 for name, history in histories.items()}
    return FitResult(
        model=model.to(place).train(net.training),
        defense=defense,
        seed=run.seed,
        steps=sum(steps.values()) - plan.count * steps.get(TRUNK, 0),  # a branch counts the steps of its trunk, too
        history=[{"mode": name, **line} for name, history in histories.items() for line in history],
        noise_std=noise_std,
        out=run.out,
    )


def _combined(trained: Sequence[FitResult | Trained], plan: ModePlan) -> tuple[nn.Module, float | None]:
    """The mixture, and the learned noise of a Gaussian likelihood."""
    return Modes([one.model for one in trained], plan.weights), mean_noise(one.noise_std for one in trained)


def _train_all(run: ModesRun, out: Path, resume: bool, device: torch.device) -> None:
    """Train, or wait for, all modes of a run folder, and write them as one network."""
    processes, plan = world(), run.plan
    opened = _opened(run, out, resume) if processes.leads else None
    if opened is not None and not opened.finished:
        _drop_damaged(run, opened)
    if processes.any(opened is not None and opened.finished):  # all wait until the first has checked the folder
        _say(run, None, f"{out} is finished: {plan.count} modes; nothing to do")
        return
    if opened is not None:
        begun = f"; {_state(out, plan)}" if any(map(run.finished, plan.names)) else ""
        _say(run, opened, f"{plan.count} modes, {plan.how}, of {run.defense.name} in {out / MODES}{begun}")
    try:
        _train_missing(run, out, opened, device)
    except Interrupted as stop:
        rest = f"{_state(out, plan)}, saved in {out}; continue with --resume (resume=True)"
        raise Interrupted(f"stopped; {rest}", stop.signal) from None
    if opened is not None:
        _say(run, opened, _write_all(run, out))
    processes.any(False)  # until the file is there


def _drop_damaged(run: ModesRun, opened: RunFolder) -> None:
    """Files of modes that are not as they were written go; the training of each writes its own again."""
    for file in (opened.path / MODES / name / MODEL for name in run.plan.trainings):
        if file.exists() and not is_sound(file.parent, MODEL):
            file.unlink()
            _say(run, opened, f"{file} is damaged, and is written again")


def _train_missing(run: ModesRun, out: Path, opened: RunFolder | None, device: torch.device) -> None:
    """Train the modes that are not finished, with other processes if there are some, and wait for theirs."""
    processes, plan = world(), run.plan
    devices = _devices(device, processes.size)
    if processes.size > 1:
        for name in plan.trainings:
            if not processes.any(run.finished(name)):
                run.train(name, device)
    elif len(devices) > 1:
        _train_in_parallel(run, out, devices)
    said, began, before = list[str](), time.monotonic(), sum(map(run.finished, plan.trainings))
    while processes.size == 1 and not all(map(run.finished, plan.trainings)):
        trained = False
        for name in plan.trainings:
            if run.train_unless_taken(name, device):
                trained, left = True, [one for one in plan.trainings if not run.finished(one)]
                # at the pace of all processes that train modes of this run
                pace = (time.monotonic() - began) / (len(plan.trainings) - len(left) - before)
                if left:
                    _say(run, opened, f"{_state(out, plan)}, about {duration(pace * len(left))} left")
        if not trained and not all(map(run.finished, plan.trainings)):
            said = _wait_for_others(run, said)


def _state(out: Path, plan: ModePlan) -> str:
    return f"{sum((out / MODES / name / MODEL).exists() for name in plan.names)} of {plan.count} modes finished"


def _wait_for_others(run: ModesRun, said: list[str]) -> list[str]:
    """Waits a moment; returns what it waits for, which is not said again."""
    taken = [run.title(name) for name in run.plan.trainings if not run.finished(name)]
    if taken != said:
        _say(run, None, f"waiting for other processes, which train {', '.join(taken)}")
    time.sleep(SECONDS_BETWEEN_LOOKS)
    return taken


def _opened(run: ModesRun, out: Path, resume: bool) -> RunFolder:
    """The folder of the whole run, new or checked; the checks of a training are made once, before the first."""
    model = run.defense.wrap(copy.deepcopy(run.net))
    device = next(model.parameters()).device
    training = TrainingState(model, run.data.to(device), run.defense, run.seed, "eager", ALONE)
    facts = run_facts(model, training.data.train, run.seed, world().size, run.init)
    with locked_folder(out, wait=True):  # another process opens or finishes the run, which takes a moment
        opened = _ModesFolder(out, run.config, facts, resume=resume)
    for note in opened.notes:
        _say(run, opened, note)
    return opened


class _ModesFolder(RunFolder):
    """The folder of all modes, which has no checkpoints of its own."""

    @cached_property
    def finished(self) -> bool:
        """Whether the file of all modes is there and sound; else it is written again."""
        return (self.path / MODEL).exists() and is_sound(self.path, MODEL)

    @property
    def state(self) -> str:
        return _state(self.path, stored_config(self.path).modes)

    def _reopen(self, config: Config, resume: bool) -> None:
        """A run may get more modes: those that it has do not depend on their number."""
        before = stored_config(self.path)
        more = replace(before, modes=replace(before.modes, count=config.modes.count))
        if len(before.init) == before.modes.count and config.init[: len(before.init)] == before.init:
            more = replace(more, init=config.init)  # a file for each of the further modes
        if 1 < before.modes.count < config.modes.count:
            if difference := more.difference(config):
                raise RunError(f"{self.path} holds a run with other settings: {difference}; choose another folder")
            if not resume:
                raise RunError(f"{self.path} holds {before.modes.count} modes; add some with --resume or resume=True")
            (self.path / MODEL).unlink(missing_ok=True)
            write_atomically(self.path / CONFIG, config.to_toml().encode())
        now = self.facts["init"]
        super()._reopen(config, resume)
        if len(now) > len(self.facts.get("init", now)):
            self.facts["init"] = now
            self._write_facts()

    def _check_start(self, before: object, now: Sequence[Sequence[str]]) -> None:
        """Further modes may have weights of their own."""
        super()._check_start(before, now[: len(before)] if isinstance(before, list) and len(before) > 1 else now)


def _train_in_parallel(run: ModesRun, out: Path, devices: list[str]) -> None:
    """Train the modes that no other process trains, one at a time on each device."""
    threads, needed_by = share_of_threads(len(devices)), run.plan.needed_by
    with tempfile.TemporaryDirectory() as place:  # the data is too large for messages
        file = Path(place) / "run"
        file.write_bytes(pickle.dumps(replace(run, titled=False)))  # the names of tasks are shown
        needs = {name: (run.title(before),) if (before := needed_by(name)) else () for name in run.plan.trainings}
        tasks = [Task(run.title(name), _train_task, (file, name), needed) for name, needed in needs.items()]
        results = run_tasks(tasks, devices, threads=threads, log=lambda line: _say(run, None, line))
    if results.failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in results.failed.items())
        raise RunError(f"{out} is not finished: {reasons}; remove the cause, and continue with --resume (resume=True)")


def _train_task(device: str, file: Path, name: str) -> None:
    run: ModesRun = pickle.loads(file.read_bytes())  # of this user, written a moment ago
    run.train_unless_taken(name, device)


def _write_all(run: ModesRun, out: Path) -> str:
    """Write all modes as one network; returns what was done, with the averages of their last metrics in training."""
    modes, noise_std = _combined([run.load(name) for name in run.plan.names], run.plan)
    notes = {} if noise_std is None else {NOISE_STD: repr(noise_std)}
    done = f"finished: {run.plan.count} modes in {out}"
    with locked_folder(out, wait=True):
        now = stored_config(out).modes.count
        if now > run.plan.count:
            return f"{done}, which has {now} modes by now; the process that added some writes all as one network"
        save_weights(modes, out / MODEL, notes, partial(write_sum, out, MODEL))
    histories = [read_metrics(out / MODES / name / METRICS) for name in run.plan.names]
    if not all(histories) or any(map(run.plan.attacked_for, run.plan.names)):  # lost, or on other images than the first
        return done
    last = [history[-1] for history in histories]
    scores = [key for key in last[0] if key.endswith("_accuracy") and all(key in line for line in last)]
    means = {key.partition("_")[0]: 100 * sum(m[key] for m in last) / len(last) for key in scores}
    listed = ", ".join(f"{kind} {mean:.1f} %" for kind, mean in means.items())
    return f"{done}; average of the modes in training: {listed}" if means else done


def _devices(device: torch.device, processes: int) -> list[str]:
    """The device of each worker: all GPUs for `"cuda"` without a number, unless processes train together."""
    if processes > 1 or str(device) != "cuda":
        return [str(device)]
    return device_list("cuda", jobs=None, pending=MOST)


def _say(run: ModesRun, opened: RunFolder | None, text: str) -> None:
    if opened is not None:
        opened.write_log(text)
    with ProgressBar("training" if run.progress and world().leads else None) as bar:
        bar.print(text)
