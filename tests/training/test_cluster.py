"""Tasks on Dask workers: local processes, and a scheduler with two workers, one of which is killed."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("distributed")

import dask
import distributed

from advbnn.errors import ArgumentError, RunError
from advbnn.training import cluster
from advbnn.training.checkpoint import latest
from advbnn.training.interrupts import Interrupted
from advbnn.training.run_folder import CHECKPOINTS, MODEL
from advbnn.training.tasks import Task, TaskQueue, run_tasks
from stand_in_tasks import copy, die, good_and_bad, once, say, train_and_stay, train_long, write
from workers import train_resumable

HERE = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


@contextmanager
def started(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Dask in another process. Its log is a file: a pipe that nobody reads would fill, and stop it."""
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "dask", *command], env=HERE, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def started_scheduler(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A scheduler, and its address."""
    file = folder / "scheduler.json"
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    with started(folder / "scheduler.log", "scheduler", *options) as process:
        once(file, lambda: None)
        while not (text := file.read_text()):  # Dask opens the file before it writes
            time.sleep(0.05)
        yield json.loads(text)["address"], process


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory) -> Iterator[tuple[str, Callable[[], None]]]:
    """The address of a scheduler of our own, and a function that starts a worker for it."""
    folder, numbers = tmp_path_factory.mktemp("dask"), count()
    options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0"]
    with ExitStack() as stack:
        address, _ = stack.enter_context(started_scheduler(folder))

        def start_worker() -> None:
            stack.enter_context(started(folder / f"worker-{next(numbers)}.log", "worker", address, *options))

        yield address, start_worker


@pytest.mark.slow
def test_a_training_whose_worker_is_killed_goes_on_elsewhere_bit_for_bit(scheduler, tmp_path: Path) -> None:
    address, start_worker = scheduler
    start_worker(), start_worker()
    begun, out = tmp_path / "begun", tmp_path / "run"
    killer = threading.Thread(target=once, args=(begun, lambda: os.kill(int(begun.read_text()), signal.SIGKILL)))
    killer.start()
    lines: list[str] = []
    tasks = [
        Task(name="training", work=train_and_stay, arguments=(out, begun)),
        Task(name="after", work=copy, arguments=(begun, tmp_path / "after"), needs=("training",)),
    ]
    results = run_tasks(tasks, ["cpu"], threads=1, log=lines.append, cluster=address)
    killer.join()
    assert (results.done, results.failed) == (["training", "after"], {})
    assert any(line.startswith("again:  training") for line in lines)
    assert "resumed after step 11" in (out / "log.txt").read_text()
    whole = tmp_path / "whole"
    train_resumable(whole)
    assert (out / MODEL).read_bytes() == (whole / MODEL).read_bytes()
    with cluster.connected(address) as client:  # an import of torch would silence it for seconds
        assert not client.run_on_scheduler(lambda: "torch" in sys.modules)


@pytest.mark.slow
def test_workers_of_another_version_and_without_the_folder_say_so(scheduler, tmp_path: Path, monkeypatch) -> None:
    address, start_worker = scheduler
    start_worker()
    task = Task(name="task", work=write, arguments=(tmp_path / "file",))
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "__version__", "9.9")
        results = run_tasks([task], [], threads=None, log=print, cluster=address)
        assert "9.9; install the same version" in results.failed["task"]
    with monkeypatch.context() as patched:
        patched.setattr(os, "getcwd", lambda: "/nowhere/at/all")
        results = run_tasks([task], [], threads=None, log=print, cluster=address)
        assert "folder that all machines see" in results.failed["task"]


def test_an_address_without_a_scheduler_is_refused(tmp_path: Path) -> None:
    task = Task(name="task", work=write, arguments=(tmp_path / "file",))
    with dask.config.set({"distributed.comm.timeouts.connect": 0.5}):
        for address in ("tcp://127.0.0.1:9", "what?"):
            with pytest.raises(ArgumentError, match="cluster.*dask scheduler"):
                run_tasks([task], [], threads=None, log=print, cluster=address)


@pytest.mark.parametrize("address", ["foo", "tcp://foo", "foo:bar", "foo://bar:80"])
def test_an_unreadable_address_is_refused_before_a_client_waits_for_it(address: str, monkeypatch) -> None:
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("a client was started"))
    with pytest.raises(ArgumentError, match="cluster.*dask scheduler"), cluster.connected(address):
        pass


def test_a_scheduler_that_ends_is_said_to_be_lost(tmp_path: Path) -> None:
    task = Task(name="task", work=write, arguments=(tmp_path / "file",))
    with started_scheduler(tmp_path) as (address, process), cluster.connected(address) as client:
        client.rpc.timeout = 0.5  # instead of Dask's half a minute
        queue = TaskQueue([task], lambda line: process.kill())  # which says that it waits for workers
        with pytest.raises(RunError, match="scheduler.*same command again"):
            cluster.run_on_workers(client, queue, device=None, threads=None)


def test_workers_are_not_lost_when_the_client_renews_its_own_list() -> None:
    """Every two seconds Dask's client reads a list without workers; here, right after each list with them."""
    place = distributed.LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0")
    with place, distributed.Client(place, set_as_default=False) as client:
        renew = client._update_scheduler_info

        async def renew_twice(n_workers: int = 0) -> None:
            await renew(n_workers)
            await renew()

        client._update_scheduler_info = renew_twice
        assert len(cluster._workers(client)) == 1


class Looks:
    """A client of a scheduler with other workers at each look; tasks end after three looks."""

    def __init__(self, *workers: dict[str, dict[str, object]]) -> None:
        self.workers, self.looks, self.submitted = workers, 0, list[tuple[str, int]]()
        self.scheduler = SimpleNamespace(identity=None)

    def subscribe_topic(self, *_: object) -> None: ...

    def sync(self, *_: object, **__: object) -> dict[str, object]:
        self.looks += 1
        return {"workers": self.workers[min(self.looks, len(self.workers)) - 1]}

    def submit(self, *_: object, workers: list[str], **__: object) -> SimpleNamespace:
        start = self.looks
        self.submitted.append((workers[0], start))
        done = SimpleNamespace(status="finished", result=lambda: None, release=lambda: None)
        done.done = lambda: self.looks >= start + 3
        return done


def test_a_task_on_a_cpu_stays_there_when_workers_with_gpus_come() -> None:
    cpu, gpu = {"resources": {}, "memory_limit": 0}, {"resources": {"GPU": 1.0}, "memory_limit": 0}
    client, lines = Looks({"cpu": cpu}, {"cpu": cpu, "gpu": gpu}), list[str]()
    queue = TaskQueue([Task(name=name, work=write) for name in "ab"], lines.append)
    cluster.run_on_workers(client, queue, device=None, threads=None)
    assert client.submitted == [("cpu", 1), ("gpu", 2)] and queue.results.done == ["a", "b"]
    assert not any(line.startswith(("again", "Dask")) for line in lines)


def test_a_task_whose_workers_are_lost_fails_and_a_memory_limit_is_named() -> None:
    limited = {"resources": {}, "memory_limit": 2**31}
    client, lines = Looks(*[{str(number): limited} for number in range(9)]), list[str]()
    queue = TaskQueue([Task(name="task", work=write)], lines.append)
    cluster.run_on_workers(client, queue, device=None, threads=None)
    assert len(client.submitted) == cluster.ATTEMPTS and "lost 3 times" in queue.results.failed["task"]
    assert [line for line in lines if "2.00 GiB" in line and "--memory-limit 0" in line] == lines[1:2]  # once


def test_the_documented_slurm_cluster_submits_such_jobs(monkeypatch) -> None:
    """Its scripts; there is no Slurm to submit them to."""
    jobqueue = pytest.importorskip("dask_jobqueue")
    page = Path(__file__).parents[2] / "docs" / "cluster.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    scripts: list[str] = []

    class Unsubmitted(jobqueue.SLURMCluster):  # type: ignore[misc, name-defined]
        def __init__(self, scheduler_options: dict[str, object], **options: object) -> None:
            free = {"port": 0, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
            super().__init__(scheduler_options={**scheduler_options, **free}, **options)

        def adapt(self, minimum_jobs: int, maximum_jobs: int) -> None:
            scripts.append(self.job_script())

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobqueue, "SLURMCluster", Unsubmitted)
    namespace = {"__name__": "__main__"}
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patched:
        patched.setattr("time.sleep", stop)
        exec(compile(code, page, "exec"), namespace)
    namespace["cluster"].close()
    (script,) = scripts
    for line in ("-p gpu", "--cpus-per-task=8", "-t 12:00:00", "--gres=gpu:1"):
        assert f"#SBATCH {line}\n" in script
    worker = script.splitlines()[-1]
    assert re.search(r"dask_worker tcp://\S+ .*--nthreads 1 .*--resources GPU=1", worker)
    assert worker.rpartition("--memory-limit ")[2].split()[0] == "0"  # the last one counts


@pytest.mark.slow
def test_local_processes_survive_failures_and_lost_workers(tmp_path: Path, capfd, monkeypatch) -> None:
    monkeypatch.setattr(cluster, "ATTEMPTS", 1)
    tasks = [
        *good_and_bad(tmp_path),
        Task(name="killed", work=die),
        Task(name="talkative", work=say, arguments=("half way\n",)),
    ]
    results = run_tasks(tasks, ["cpu", "cpu"], threads=1, log=print)
    assert set(results.done) == {"before", "after", "talkative"}
    assert results.failed["bad"] == "eps must be positive, got -1"
    assert results.failed["wrong"] == "KeyError: 'nobody'"
    assert "worker was lost" in results.failed["killed"]
    assert results.skipped == ["after bad"]
    printed = capfd.readouterr().err
    assert "  talkative: half way\n" in printed and "  talkative: warning: it is late\n" in printed
    assert printed.count("Traceback") == 1  # only for the bug


@pytest.mark.slow
def test_ctrl_c_saves_trainings_and_ends_other_tasks(tmp_path: Path) -> None:
    """Of two local processes, one trains and one is busy with something that cannot be stopped."""
    from stand_in_tasks import wait_for

    tasks = [
        Task(name="training", work=train_long, arguments=(tmp_path / "run",)),
        Task(name="measurement", work=wait_for, arguments=(tmp_path / "flag", tmp_path / "file")),
    ]
    both = tmp_path / "file.begun"

    def stop() -> None:
        once(tmp_path / "run" / "metrics.jsonl", lambda: os.kill(os.getpid(), signal.SIGINT))

    thread = threading.Thread(target=once, args=(both, stop))
    thread.start()
    with pytest.raises(Interrupted) as stopped:
        run_tasks(tasks, ["cpu", "cpu"], threads=1, log=print)
    thread.join()
    assert stopped.value.signal == signal.SIGINT
    assert latest(tmp_path / "run" / CHECKPOINTS) is not None  # none was due
    assert not (tmp_path / "file").exists()
