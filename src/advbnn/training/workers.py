"""Runs tasks that depend on each other in several processes; an interrupted run can be started again.

Every worker is a process with its own device that lives until there is no more work. The parent handles Ctrl-C and
SIGTERM and sends SIGTERM to its workers: a training finishes its step and saves, a measurement simply ends, since each
of its batches is already on disk.
"""

import io
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from multiprocessing.connection import Connection, wait
from typing import Any

from advbnn.errors import AdvbnnError, positive_whole
from advbnn.training.interrupts import Interrupted, Interrupts

_SECONDS_TO_STOP = 60.0  # for a worker to save its state after SIGTERM


@dataclass(frozen=True)
class Task:
    """A piece of work with a unique name, the names of the tasks that it needs, and its estimated duration if known.

    `work` is a function at module level. Its first argument is the device, before `arguments`.
    """

    name: str
    work: Callable[..., None]
    arguments: tuple[Any, ...] = ()
    needs: tuple[str, ...] = ()
    seconds: float | None = None


@dataclass
class TaskResults:
    """The names of the tasks that succeeded, those that failed with the reason, and those that needed a failed one."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def run_tasks(
    tasks: Sequence[Task], devices: Sequence[str], *, threads: int, log: Callable[[str], None]
) -> TaskResults:
    """Runs the tasks, each after those it needs, first those with the most work depending on them.

    There is a worker for each of `devices`, with so many CPU threads. A need that is not among the tasks counts as
    done. `log` receives a line whenever a task starts or ends, with the time left if all have estimates.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM; the workers have saved what they could and have ended.
    """
    results = TaskResults()
    waiting = {task.name: task for task in tasks}
    workers = [_Worker(device, threads) for device in devices[: len(tasks)]]
    try:
        with Interrupts() as interrupts:
            while True:
                _start_tasks(waiting, workers, log)
                busy = {worker.pipe: worker for worker in workers if worker.task is not None}
                if not busy:
                    return results
                ready = wait(list(busy), timeout=0.5)
                if interrupts.received is not None:
                    raise Interrupted("stopped", interrupts.received)
                for worker in [worker for pipe, worker in busy.items() if pipe in ready]:
                    name, reason = worker.finish()
                    if reason is None:
                        results.done.append(name)
                        line = f"done:   {name}, {in_words(time.monotonic() - worker.started)}"
                    else:
                        results.failed[name] = reason
                        line = f"failed: {name}: {reason}"
                    _skip_impossible(waiting, results)
                    log(f"{line} ({_progress(results, len(tasks), waiting, workers)})")
    finally:
        _stop(workers)


class _Worker:
    """A process and the pipe to it; a process that died is replaced."""

    def __init__(self, device: str, threads: int) -> None:
        self.device, self.threads = device, threads
        self.task: Task | None = None
        self.started = 0.0
        self._start_process()

    def _start_process(self) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, self.device, self.threads))
        self.process.start()
        other.close()

    def start(self, task: Task) -> None:
        self.task, self.started = task, time.monotonic()
        with suppress(OSError):  # `finish` reports a process that died while idle
            self.pipe.send(task)

    def finish(self) -> tuple[str, str | None]:
        """The name of the task that ended, and the reason if it failed."""
        assert self.task is not None
        name, self.task = self.task.name, None
        try:
            return name, self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            reason = f"its process ended with status {self.process.exitcode}"
            self.pipe.close()
            self._start_process()
            return name, reason

    def seconds_left(self) -> float | None:
        """The estimated rest of its task; None without an estimate, or once it has taken longer."""
        if self.task is None or self.task.seconds is None:
            return None
        left = self.task.seconds - (time.monotonic() - self.started)
        return left if left > 0 else None


def _start_tasks(waiting: dict[str, Task], workers: Sequence[_Worker], log: Callable[[str], None]) -> None:
    """Gives every idle worker one of the tasks that can start."""
    for worker in workers:
        unfinished = {*waiting, *(other.task.name for other in workers if other.task is not None)}
        ready = [task for task in waiting.values() if not unfinished & set(task.needs)]
        if worker.task is None and ready:
            # with the longest duration, together with those that need it
            every = waiting.values()
            task = max(ready, key=lambda t: sum(o.seconds or 0.0 for o in every if o is t or t.name in o.needs))
            worker.start(waiting.pop(task.name))
            log(f"start:  {task.name}")


def _progress(results: TaskResults, count: int, waiting: dict[str, Task], workers: Sequence[_Worker]) -> str:
    estimates = [task.seconds for task in waiting.values()]
    estimates += [worker.seconds_left() for worker in workers if worker.task is not None]
    known = [seconds for seconds in estimates if seconds is not None]
    done = f"{len(results.done)} of {count} done"
    return f"{done}, about {in_words(wall_time(known, len(workers)))} left" if known and known == estimates else done


def in_words(seconds: float) -> str:
    """A duration such as `"12 min"`."""
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def wall_time(seconds: Iterable[float], workers: int) -> float:
    """The duration of all tasks if the workers share them evenly and do not slow each other down."""
    every = list(seconds)
    return max(sum(every) / workers, max(every, default=0.0))


def _skip_impossible(waiting: dict[str, Task], results: TaskResults) -> None:
    """Skips the tasks that need a failed one, directly or through others."""
    while impossible := [
        name for name, task in waiting.items() if {*results.failed, *results.skipped} & set(task.needs)
    ]:
        for name in impossible:
            del waiting[name]
        results.skipped += impossible


def _stop(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        if worker.task is not None:
            worker.process.terminate()
        worker.pipe.close()  # an idle worker ends when its pipe does
    deadline = time.monotonic() + _SECONDS_TO_STOP
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _serve(pipe: Connection, device: str, threads: int) -> None:
    """The loop of a worker: one task after another until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    import torch

    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(threads)
    while True:
        try:
            task: Task = pipe.recv()
        except EOFError:
            return
        reason = _run(task, device)
        with suppress(BrokenPipeError, OSError):
            pipe.send(reason)


def _run(task: Task, device: str) -> str | None:
    """Runs a task; returns the reason if it failed."""
    try:
        with redirect_stderr(_Prefixed(task.name)):
            task.work(device, *task.arguments)
    except Interrupted:
        sys.exit(0)
    except AdvbnnError as error:
        return str(error)
    except Exception as error:  # a failed task must not end the others
        traceback.print_exc()  # a bug, or out of memory
        return f"{type(error).__name__}: {error}"
    return None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class _Prefixed(io.TextIOBase):
    """Writes whole lines to stderr, each with the name of its task, so that the lines of workers do not mix."""

    def __init__(self, name: str) -> None:
        self._name, self._rest, self._stderr = name, "", sys.stderr

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        self._stderr.write("".join(f"  {self._name}: {line}\n" for line in lines if line.strip()))
        self._stderr.flush()
        return len(text)


def device_list(device: str, jobs: int | None, pending: int) -> list[str]:
    """The device of each worker, at most `pending`; without `jobs` one for each GPU, or up to two on the CPU."""
    import torch

    jobs = None if jobs is None else positive_whole("jobs", jobs)
    places = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if device == "cuda" else [device]
    default = len(places) if device.startswith("cuda") else min(2, os.cpu_count() or 1)
    return list(islice(cycle(places), max(1, min(jobs or default, pending))))
