"""Tasks in several processes: order, failures, and what remains after a kill."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stand_in_tasks
from advbnn.errors import ArgumentError
from advbnn.training.interrupts import Interrupted
from advbnn.training.workers import Task, _stop, _Worker, device_list, in_words, run_tasks, wall_time
from stand_in_tasks import copy, die, missing, refuse, say, stumble, write


def test_tasks_wait_for_what_they_need_and_survive_the_failure_of_others(tmp_path, capfd) -> None:
    tasks = [
        Task(name="after", work=copy, arguments=(tmp_path / "before", tmp_path / "after"), needs=("before",)),
        Task(name="before", work=write, arguments=(tmp_path / "before",)),
        Task(name="bad", work=refuse),
        Task(name="wrong", work=stumble),
        Task(name="after bad", work=write, arguments=(tmp_path / "never",), needs=("bad",)),
        Task(name="much later", work=write, arguments=(tmp_path / "never",), needs=("after bad",)),
        Task(name="killed", work=die),
        Task(name="last", work=write, arguments=(tmp_path / "last",), needs=("something done long ago",)),
        Task(name="talkative", work=say, arguments=("half way\n",)),
    ]
    lines: list[str] = []
    results = run_tasks(tasks, ["cpu"], threads=1, log=lines.append)
    assert set(results.done) == {"before", "after", "last", "talkative"}
    assert results.done.index("before") < results.done.index("after")
    assert (tmp_path / "after").read_text() == "cpu\n"
    bad, wrong, killed = (results.failed[name] for name in ("bad", "wrong", "killed"))
    assert (bad, wrong) == ("eps must be positive, got -1", "KeyError: 'nobody'")
    assert "ended with status -9" in killed
    assert results.skipped == ["after bad", "much later"]
    assert "failed: bad: eps must be positive, got -1" in {line.rpartition(" (")[0] for line in lines}
    assert lines[-1].endswith("(4 of 9 done)")
    printed = capfd.readouterr().err
    assert "  talkative: half way\n" in printed and "  talkative: warning: it is late\n" in printed
    assert printed.count("Traceback") == 1  # only for the bug


def test_a_worker_that_dies_before_its_work_is_replaced(tmp_path, capfd) -> None:
    """Because its device does not exist: first with a task in its pipe, then while it is idle."""
    worker = _Worker("cuda:99", threads=1)
    try:
        for name in ("first", "second"):
            worker.start(Task(name=name, work=write, arguments=(tmp_path / name,)))
            assert worker.finish() == (name, "its process ended with status 1")
            worker.process.join()
    finally:
        _stop([worker])
    assert not list(tmp_path.iterdir())
    assert "cuda" in capfd.readouterr().err.lower()


def test_the_task_with_most_dependent_work_starts_first_and_lines_show_the_progress(tmp_path) -> None:
    def task(name: str, seconds: float | None, *needs: str) -> Task:
        return Task(name=name, work=write, arguments=(tmp_path / name,), needs=needs, seconds=seconds)

    tasks = [task("alone", 500), task("before", 90), task("after", 300), task("later", 3000, "before")]
    lines: list[str] = []
    run_tasks(tasks, ["cpu"], threads=1, log=lines.append)
    assert [re.sub(r", \d+ s ", " ", line) for line in lines if line.startswith("done")] == [
        "done:   before (1 of 4 done, about 63 min left)",
        "done:   later (2 of 4 done, about 13 min left)",
        "done:   alone (3 of 4 done, about 5 min left)",
        "done:   after (4 of 4 done)",
    ]
    run_tasks([task("known", 500), task("unknown", None)], ["cpu"], threads=1, log=lines.append)
    assert lines[-3].endswith("(1 of 2 done)")


def test_after_an_interrupt_or_a_kill_the_rest_is_done(tmp_path) -> None:
    waits = tmp_path / "second.begun"
    threading.Thread(target=_once, args=(waits, lambda: os.kill(os.getpid(), signal.SIGINT))).start()
    with pytest.raises(Interrupted):
        run_tasks(missing(tmp_path), ["cpu"], threads=1, log=print)
    assert [task.name for task in missing(tmp_path)] == ["second", "third"]

    waits.unlink()
    program = [sys.executable, stand_in_tasks.__file__, str(tmp_path)]
    path = os.pathsep.join(filter(None, sys.path))
    started = subprocess.Popen(program, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE)
    _once(waits, started.kill)
    started.communicate(timeout=60)  # its worker holds the pipe, and ends with its parent
    (tmp_path / "flag").touch()
    assert [task.name for task in missing(tmp_path)] == ["second", "third"]

    done = run_tasks(missing(tmp_path), ["cpu"], threads=1, log=print).done
    assert done == ["second", "third"]
    assert (tmp_path / "third").read_text() == (tmp_path / "first").read_text() == "cpu\n"  # made once


def _once(path: Path, act: Callable[[], None]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    act()


def test_devices_of_workers(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert device_list("cpu", jobs=8, pending=3) == ["cpu"] * 3  # never more workers than work
    assert device_list("cpu", jobs=None, pending=1) == ["cpu"]
    assert device_list("cuda:1", jobs=3, pending=9) == ["cuda:1"] * 3
    assert device_list("cuda", jobs=None, pending=9) == ["cuda:0", "cuda:1"]  # one for every GPU
    assert device_list("cuda", jobs=3, pending=9) == ["cuda:0", "cuda:1", "cuda:0"]
    with pytest.raises(ArgumentError, match="jobs .*got 0"):
        device_list("cpu", jobs=0, pending=1)


def test_durations_in_words() -> None:
    assert [in_words(seconds) for seconds in (0.2, 4, 89, 600, 7200)] == ["1 s", "4 s", "89 s", "10 min", "2.0 h"]


def test_shared_work_takes_at_least_as_long_as_its_longest_task() -> None:
    assert wall_time([10, 2, 2], workers=2) == 10
    assert wall_time([4, 4, 4], workers=2) == 6
    assert wall_time([], workers=2) == 0
