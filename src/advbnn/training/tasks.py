"""Work that is shared among processes: tasks that need each other, run one after another or side by side on workers.

Finished work is on disk, and a training has checkpoints: after Ctrl-C or a crash the same tasks continue.
"""

import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import cycle, islice
from typing import Any

from advbnn.errors import AdvbnnError, InUseError, positive_whole
from advbnn.training.interrupts import raised


@dataclass(frozen=True)
class Task:
    """A piece of work with a unique name, the names of the tasks that it needs, and its estimated duration if known.

    `work` is a function at module level. Its first argument is the device, before `arguments`. It may be called again
    after a crash, and then continues from what is on disk.
    """

    name: str
    work: Callable[..., None]
    arguments: tuple[Any, ...] = ()
    needs: tuple[str, ...] = ()
    seconds: float | None = None

    def run(self, device: str, patience: float = 0.0) -> str | None:
        """Does the work; returns the reason if it fails.

        What another process has locked is waited for up to `patience` seconds.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                self.work(device, *self.arguments)
                return None
            except AdvbnnError as error:
                if not isinstance(error, InUseError) or time.monotonic() > deadline:
                    return str(error)
                time.sleep(1.0)
            except Exception as error:  # a failed task must not end the others
                traceback.print_exc()  # a bug, or out of memory
                return f"{type(error).__name__}: {error}"


@dataclass
class TaskResults:
    """The names of the tasks that succeeded, those that failed with the reason, and those that needed a failed one."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


class TaskQueue:
    """Which tasks wait, run and have ended; `log` receives a line whenever one starts or ends."""

    def __init__(self, tasks: Sequence[Task], log: Callable[[str], None]) -> None:
        self.waiting = {task.name: task for task in tasks}
        self.running: dict[str, Task] = {}
        self.results = TaskResults()
        self.log = log
        self._count, self._started = len(tasks), dict[str, float]()

    def start(self) -> Task | None:
        """The next task, which now runs; None while there is none that can start.

        It is the one with the longest duration, together with those that need it.
        """
        every = self.waiting.values()
        unfinished = {*self.waiting, *self.running}
        ready = [task for task in every if not unfinished & set(task.needs)]
        if not ready:
            return None
        task = max(ready, key=lambda t: sum(o.seconds or 0.0 for o in every if o is t or t.name in o.needs))
        self.running[task.name] = self.waiting.pop(task.name)
        self._started[task.name] = time.monotonic()
        self.log(f"start:  {task.name}")
        return task

    def put_back(self, task: Task, why: str) -> None:
        """The task is to be started again."""
        self.waiting[task.name] = self.running.pop(task.name)
        self.log(f"again:  {task.name}: {why}")

    def end(self, task: Task, reason: str | None, workers: int) -> None:
        """The task has ended, with the reason if it failed; those that need a failed one are skipped."""
        del self.running[task.name]
        if reason is None:
            self.results.done.append(task.name)
            line = f"done:   {task.name}, {in_words(self.seconds(task))}"
        else:
            self.results.failed[task.name] = reason
            line = f"failed: {task.name}: {reason}"
        self._skip_impossible()
        self.log(f"{line} ({self._progress(workers)})")

    def seconds(self, task: Task) -> float:
        """The time since the last start of a task."""
        return time.monotonic() - self._started[task.name]

    def _skip_impossible(self) -> None:
        results = self.results
        while impossible := [
            name for name, task in self.waiting.items() if {*results.failed, *results.skipped} & set(task.needs)
        ]:
            for name in impossible:
                del self.waiting[name]
            results.skipped += impossible

    def _progress(self, workers: int) -> str:
        estimates = [task.seconds for task in self.waiting.values()]
        estimates += [self._seconds_left(task) for task in self.running.values()]
        known = [seconds for seconds in estimates if seconds is not None]
        done = f"{len(self.results.done)} of {self._count} done"
        return f"{done}, about {in_words(wall_time(known, workers))} left" if known and known == estimates else done

    def _seconds_left(self, task: Task) -> float | None:
        """The estimated rest of a task; None without an estimate, or once it has taken longer."""
        left = -1.0 if task.seconds is None else task.seconds - self.seconds(task)
        return left if left > 0 else None


def in_words(seconds: float) -> str:
    """A duration such as `"12 min"`."""
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def wall_time(seconds: Iterable[float], workers: int) -> float:
    """The duration of all tasks if the workers share them evenly and do not slow each other down."""
    every = list(seconds)
    return max(sum(every) / max(1, workers), max(every, default=0.0))


def run_tasks(
    tasks: Sequence[Task],
    devices: Sequence[str],
    *,
    threads: int | None,
    log: Callable[[str], None],
    cluster: str | None = None,
) -> TaskResults:
    """Runs the tasks, each after those it needs, first those with the most work depending on them.

    Args:
        tasks: a need that is not among them counts as done.
        devices: one runs everything in this process; for several, a local process is started for each. With a cluster
            the first, if any, is what all tasks run on, instead of the GPU or CPU of their worker.
        threads: of each process on the CPU; None, and a cluster, leave them as they are.
        log: receives a line whenever a task starts or ends, with the time left if all have estimates.
        cluster: the address of a Dask scheduler, whose workers run the tasks.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM; trainings have saved their state.
    """
    queue = TaskQueue(tasks, log)
    if cluster is None and len(devices) == 1:
        with raised():
            while (task := queue.start()) is not None:
                queue.end(task, task.run(devices[0]), workers=1)
    elif tasks:
        from advbnn.training.cluster import connected, local_workers, run_on_workers

        place = local_workers(devices[: len(tasks)]) if cluster is None else connected(cluster)
        with place as client:
            device = devices[0] if cluster and devices else None
            run_on_workers(client, queue, device=device, threads=None if cluster else threads)
    return queue.results


def device_list(device: str, jobs: int | None, pending: int) -> list[str]:
    """The device of each worker, at most `pending`; without `jobs` one for each GPU, or up to two on the CPU.

    Without Dask there is one worker by default.
    """
    import torch

    jobs = None if jobs is None else positive_whole("jobs", jobs)
    places = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if device == "cuda" else [device]
    default = len(places) if device.startswith("cuda") else min(2, os.cpu_count() or 1)
    if find_spec("distributed") is None:
        if jobs is None and len(places) > 1:
            warnings.warn(f"only one of {len(places)} GPUs is used; pip install 'advbnn[cluster]'", stacklevel=2)
        default = 1
    devices = list(islice(cycle(places), max(1, min(jobs or default, pending))))
    if len(devices) > 1:
        import advbnn.training.cluster  # noqa: F401  # refuses at once if Dask is missing
    return devices
