"""Tasks on the workers of a Dask cluster: processes of this machine, or those of a scheduler that the user has started.

Dask starts, watches and reaches the workers. Which task a worker gets is decided here, one at a time: seeds and threads
belong to the whole process. The task of a lost worker starts again on another one, from its last checkpoint.
"""

import io
import logging
import os
import pickle
import signal
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from functools import partial
from typing import Any

from advbnn import __version__
from advbnn.errors import ArgumentError, RunError, explain_missing_package
from advbnn.lazy import call
from advbnn.machine.memory import THRESHOLDS
from advbnn.training.interrupts import Interrupted, Interrupts, stop_running
from advbnn.training.tasks import Task, TaskQueue

with explain_missing_package(
    "several workers need Dask: pip install 'advbnn[cluster]'; without it, use one device and --jobs 1"
):
    import dask
    import distributed

DEVICE = "ADVBNN_DEVICE"
"""The environment variable with the device of a worker; by default its first GPU, or else the CPU."""

ATTEMPTS = 3
"""How often a task starts if its worker is lost each time, soon after."""

_SOON = 600.0  # seconds; a worker lost later, such as at the wall time of its job, is not the fault of the task

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_SAVE = 60.0  # for a training, after Ctrl-C
_SECONDS_IN_USE = 60.0  # for a lost worker to end and leave its run folder


@contextmanager
def local_workers(devices: Sequence[str]) -> Iterator[Any]:
    """Starts a process for each device; yields a client of them. They end with the block, and with this process."""
    quiet = {"silence_logs": logging.CRITICAL}
    here = {"host": "127.0.0.1", "nthreads": 1, "memory_limit": 0, "preload": [__name__], **quiet}
    workers = {
        number: {"cls": distributed.Nanny, "options": {**here, "env": {DEVICE: device}}}
        for number, device in enumerate(devices)
    }
    scheduler = {
        "cls": distributed.Scheduler,
        "options": {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"},
    }
    # a local process that ends is noticed; one that is only silent, such as while a laptop sleeps, is not given up
    settings: dict[str, object] = {
        "distributed.worker.profile.enabled": False,
        "distributed.scheduler.worker-ttl": None,
    }
    # Dask would let workers return all free memory to the system
    settings["distributed.nanny.pre-spawn-environ"] = dict.fromkeys(_ONE_THREAD, 1) | THRESHOLDS
    with (
        dask.config.set(settings),
        distributed.SpecCluster(workers, scheduler, **quiet) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def dask_setup(worker: Any) -> None:
    """Dask calls this in every local worker. A terminal sends Ctrl-C to all processes; the first one decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yields a client of the scheduler at an address, such as `"tcp://10.0.0.1:8786"`."""
    try:
        # refuses an address without a port, for which Dask's client would fail as well, and then wait for a minute
        distributed.comm.addressing.get_address_host(address)
        client = distributed.Client(address, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"cluster: no Dask scheduler answers at {address!r} ({error}); start one with `dask scheduler`, and give "
            "the address that it prints"
        ) from None
    with client:
        yield client


def run_on_workers(client: Any, queue: TaskQueue, *, device: str | None, threads: int | None) -> None:
    """Runs all tasks of a queue; arguments as for `run_tasks`."""
    topic = f"advbnn-{uuid.uuid4().hex}"
    client.subscribe_topic(topic, _show)
    work = partial(_work, device=device, threads=threads, folder=os.getcwd(), topic=topic, version=__version__)
    running: dict[str, tuple[Task, Any]] = {}  # by the address of the worker
    attempts: dict[str, int] = {}
    silent = limited = False
    with Interrupts() as interrupts:
        while queue.waiting or running:
            if interrupts.received is not None:
                _stop(client, running)
                raise Interrupted("stopped", interrupts.received)
            workers = _workers(client)
            if not workers and not silent:
                queue.log("waiting for workers")
            silent = not workers
            for address, (task, future) in list(running.items()):
                if future.done():
                    queue.end(task, _outcome(future), len(workers))
                elif address in workers:
                    continue
                elif attempts[task.name] < ATTEMPTS or queue.seconds(task) > _SOON:
                    queue.put_back(task, "its worker was lost")
                else:
                    queue.end(task, f"its worker was lost {ATTEMPTS} times, such as for lack of memory", len(workers))
                del running[address]
                future.release()
            for address, worker in _preferred(workers).items():
                if address in running or (next_one := queue.start()) is None:
                    continue
                if worker["memory_limit"] and not limited:
                    limit = dask.utils.format_bytes(worker["memory_limit"])
                    queue.log(f"Dask ends {address} near its limit of {limit}; start workers with --memory-limit 0")
                    limited = True
                name = next_one.name
                attempts[name] = attempts.get(name, 0) + 1
                again, key = attempts[name] > 1, f"{name}-{uuid.uuid4().hex}"
                where = {"workers": [address], "resources": {"GPU": 1} if _gpus(worker) else None}
                pickled = pickle.dumps(partial(work, next_one, again=again))
                running[address] = (next_one, client.submit(call, pickled, key=key, **where))
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _workers(client: Any) -> dict[str, dict[str, Any]]:
    """What the scheduler knows of its workers, by their address."""
    # client.scheduler_info returns what the client read last, and every two seconds it reads a list without workers
    try:
        workers: dict[str, dict[str, Any]] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    except OSError as error:
        raise RunError(f"cluster: the scheduler was lost ({error}); start it, and run the same command again") from None
    return workers


def _preferred(workers: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those with GPUs only, if any has them as a resource."""
    return {address: worker for address, worker in workers.items() if _gpus(worker)} or workers


def _gpus(worker: dict[str, Any]) -> float:
    return float(worker["resources"].get("GPU", 0))


def _outcome(future: Any) -> str | None:
    if future.status == "finished":
        reason: str | None = future.result()
        return reason
    if future.status == "cancelled":
        return "it was cancelled at the scheduler"
    error = future.exception()  # such as a package that its worker lacks
    return f"{type(error).__name__}: {error}"


def _stop(client: Any, running: dict[str, tuple[Task, Any]]) -> None:
    """Lets trainings save their state, and ends other tasks: each of their batches is already on disk."""
    with suppress(OSError, TimeoutError):  # the scheduler may be gone
        saves = client.run(stop_running, workers=list(running), on_error="ignore") if running else {}
        saving = [future for address, (_, future) in running.items() if saves.get(address)]
        deadline = time.monotonic() + _SECONDS_TO_SAVE
        while time.monotonic() < deadline and not all(future.done() for future in saving):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        if busy := [address for address, (_, future) in running.items() if not future.done()]:
            client.cancel([running[address][1] for address in busy])
            client.run(_end, workers=busy, on_error="ignore")  # no answer comes


def _end(dask_worker: Any) -> None:
    """Ends the process of a worker, if it has a nanny, which starts it again."""
    if dask_worker.nanny is not None:
        os._exit(1)


def _show(event: tuple[float, str]) -> None:
    print(event[1], file=sys.stderr, flush=True)


_one_task = threading.Lock()


def _work(
    task: Task, *, device: str | None, threads: int | None, folder: str, topic: str, version: str, again: bool
) -> str | None:
    """Runs a task on a worker; returns the reason if it fails."""
    import torch

    worker = distributed.get_worker()
    if version != __version__:
        return f"its worker has advbnn {__version__} instead of {version}; install the same version"
    with (
        _one_task,
        redirect_stderr(_Lines(task.name, lambda line: worker.log_event(topic, line))),
        warnings.catch_warnings(),
    ):
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
        try:
            os.chdir(folder)  # relative paths mean the same everywhere
        except OSError as error:
            return f"its worker cannot enter {folder} ({error.strerror}); start in a folder that all machines see"
        device = device or os.environ.get(DEVICE) or ("cuda:0" if torch.cuda.is_available() else "cpu")
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        elif threads is not None:
            torch.set_num_threads(threads)
        try:
            return task.run(device, patience=_SECONDS_IN_USE if again else 0.0)
        except Interrupted:
            return "stopped"


class _Lines(io.TextIOBase):
    """Passes on whole lines, each with the name of its task, so that those of several tasks do not mix."""

    def __init__(self, name: str, show: Callable[[str], None]) -> None:
        self._name, self._show, self._rest = name, show, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self._show(f"  {self._name}: {line}")
        return len(text)
