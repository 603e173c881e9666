"""Tasks that depend on each other, done by several processes at once; what stops can be started again.

A worker is a process of its own, with a device of its own where there are several. It lives as long as there is work,
so that its start is paid once. Signals: the parent notes Ctrl-C and SIGTERM and passes SIGTERM on to its workers. A
training finishes its step and saves; a measurement is simply ended, as each of its batches is on disk already.
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
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from advbnn.errors import ArgumentError
from advbnn.paper.durations import in_words, together
from advbnn.training.interrupts import Interrupted, Interrupts

SECONDS_TO_STOP = 60.0
"""How long a worker may take to save its state once it was asked to stop."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A piece of work.

    Attributes:
        name: what it is called; unique among the tasks.
        work: a function of a module; its first argument is the device.
        arguments: the others.
        needs: names of tasks that must be done before it.
        seconds: how long it takes by an estimate; None without one.
    """

    name: str
    work: Callable[..., None]
    arguments: tuple[Any, ...] = ()
    needs: tuple[str, ...] = ()
    seconds: float | None = None


@dataclass
class Outcome:
    """What became of the tasks.

    Attributes:
        done: names of those that succeeded.
        failed: those that did not, and why.
        skipped: those that needed one of these.
    """

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def perform(tasks: Sequence[Task], devices: Sequence[str], *, threads: int, say: Callable[[str], None]) -> Outcome:
    """Does the tasks, as many at a time as there are devices, each after those that it needs.

    Of those that can begin, that one does which the longest work hangs on: its own, and that of all that need it.

    Args:
        tasks: the work; a need that is not among them is taken to be met.
        devices: one for each worker; a device may be named several times.
        threads: of each worker, on the CPU.
        say: is told what begins and ends, how many are done, and how long the others may take if all have an estimate.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came; the workers have saved what they could and are gone.
    """
    outcome = Outcome()
    waiting = {task.name: task for task in tasks}
    workers = [_Worker(device, threads) for device in devices[: len(tasks)]]
    try:
        with Interrupts() as interrupts:
            while True:
                _hand_out(waiting, workers, say)
                busy = {worker.pipe: worker for worker in workers if worker.task is not None}
                if not busy:
                    return outcome
                finished = wait(list(busy), timeout=0.5)
                if interrupts.received is not None:
                    raise Interrupted("stopped", interrupts.received)
                for worker in [worker for pipe, worker in busy.items() if pipe in finished]:
                    ended = _collect(worker, outcome)
                    _skip_hopeless(waiting, outcome)
                    say(f"{ended} ({_progress(outcome, len(tasks), waiting, workers)})")
    finally:
        _end(workers)


class _Worker:
    """A process and the pipe to it; a process that has died is replaced."""

    def __init__(self, device: str, threads: int) -> None:
        self.device, self.threads = device, threads
        self.task: Task | None = None
        self.begun = 0.0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, self.device, self.threads))
        self.process.start()
        other.close()

    def begin(self, task: Task) -> None:
        self.task, self.begun = task, time.monotonic()
        with suppress(OSError):  # of a process that has died while idle, `end` tells
            self.pipe.send(task)

    def end(self) -> tuple[str, str | None]:
        """The name of the task that is over, and why it failed, if it did."""
        assert self.task is not None
        name, self.task = self.task.name, None
        try:
            return name, self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            self.pipe.close()
            self._start()
            return name, f"its process ended with status {code}"

    def seconds_left(self) -> float | None:
        """What is left of its task by the estimate; None without one, and once it has proved too short."""
        if self.task is None or self.task.seconds is None:
            return None
        left = self.task.seconds - (time.monotonic() - self.begun)
        return left if left > 0 else None

    def stop(self) -> None:
        """Asks for the end; a worker that is idle sees that its work is over."""
        if self.task is not None:
            self.process.terminate()
        self.pipe.close()


def _hand_out(waiting: dict[str, Task], workers: Sequence[_Worker], say: Callable[[str], None]) -> None:
    """Gives every idle worker one of the tasks that can begin."""
    for worker in workers:
        unfinished = {*waiting, *(busy.task.name for busy in workers if busy.task is not None)}
        ready = [task for task in waiting.values() if not unfinished & set(task.needs)]
        if worker.task is None and ready:
            task = max(ready, key=lambda task: _seconds_that_hang_on(task, waiting))
            del waiting[task.name]
            worker.begin(task)
            say(f"begins: {task.name}")


def _seconds_that_hang_on(task: Task, waiting: dict[str, Task]) -> float:
    return sum(each.seconds or 0.0 for each in (task, *waiting.values()) if each is task or task.name in each.needs)


def _collect(worker: _Worker, outcome: Outcome) -> str:
    """Notes what became of the task that a worker is through with, and puts it in words."""
    name, problem = worker.end()
    if problem is None:
        outcome.done.append(name)
        return f"done:   {name}, {in_words(time.monotonic() - worker.begun)}"
    outcome.failed[name] = problem
    return f"failed: {name}: {problem}"


def _progress(outcome: Outcome, count: int, waiting: dict[str, Task], workers: Sequence[_Worker]) -> str:
    """How many of the tasks are done, and how long the others may take."""
    estimates = [task.seconds for task in waiting.values()]
    estimates += [worker.seconds_left() for worker in workers if worker.task is not None]
    known = [seconds for seconds in estimates if seconds is not None]
    done = f"{len(outcome.done)} of {count} done"
    return f"{done}, about {in_words(together(known, len(workers)))} left" if known and known == estimates else done


def _skip_hopeless(waiting: dict[str, Task], outcome: Outcome) -> None:
    while True:
        lost = {*outcome.failed, *outcome.skipped}
        sanity_attack = [name for name, task in waiting.items() if lost & set(task.needs)]
        if not sanity_attack:
            return
        for name in sanity_attack:
            del waiting[name]
            outcome.skipped.append(name)


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.stop()
    deadline = time.monotonic() + SECONDS_TO_STOP
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _serve(pipe: Connection, device: str, threads: int) -> None:
    """What a worker does: one task after another, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
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
        problem = _problem(task, device)
        with suppress(BrokenPipeError, OSError):
            pipe.send(problem)


def _problem(task: Task, device: str) -> str | None:
    """Does a task; why it failed, if it did."""
    try:
        with redirect_stderr(_Prefixed(task.name)):
            task.work(device, *task.arguments)
    except Interrupted:
        sys.exit(0)
    except Exception as error:  # one failed task must not take the others along
        if isinstance(error, ValueError | RuntimeError | OSError):
            return str(error)
        traceback.print_exc()  # a mistake of the program, not of its user
        return f"{type(error).__name__}: {error}"
    return None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class _Prefixed(io.TextIOBase):
    """Lines for stderr, each with the name of its task and written whole, so that those of workers do not mix."""

    def __init__(self, name: str) -> None:
        self._name, self._rest, self._stderr = name, "", sys.stderr

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self._stderr.write(f"  {self._name}: {line}\n")
        self._stderr.flush()
        return len(text)

    def writable(self) -> bool:
        return True


def device_list(device: str, jobs: int | None, pending: int) -> list[str]:
    """One device for each worker.

    Args:
        device: `"cpu"`, `"cuda"` for all GPUs, or one such as `"cuda:1"`.
        jobs: how many workers; one for each GPU, or for each core of the CPU up to 2, when None.
        pending: how many trainings or measurements can go on at once; there are never more workers.
    """
    import torch

    if jobs is not None and jobs < 1:
        raise ArgumentError(f"jobs must be a number of processes, at least 1, got {jobs}")
    places = [device]
    if device == "cuda":
        places = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    natural = len(places) if device.startswith("cuda") else min(2, os.cpu_count() or 1)
    count = max(1, min(jobs or natural, pending))
    return [places[index % len(places)] for index in range(count)]
