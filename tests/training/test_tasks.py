"""Tasks in one process: order, failures, and what remains after a signal."""

import os
import re
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from advbnn.errors import ArgumentError
from advbnn.machine.files import locked_folder
from advbnn.training.interrupts import Interrupted
from advbnn.training.tasks import Task, device_list, in_words, run_tasks, wall_time
from stand_in_tasks import good_and_bad, missing, once, write, write_locked


def test_tasks_wait_for_what_they_need_and_survive_the_failure_of_others(tmp_path, capfd) -> None:
    tasks = [
        *good_and_bad(tmp_path),
        Task(name="much later", work=write, arguments=(tmp_path / "never",), needs=("after bad",)),
        Task(name="last", work=write, arguments=(tmp_path / "last",), needs=("something done long ago",)),
    ]
    lines: list[str] = []
    results = run_tasks(tasks, ["cpu"], threads=1, log=lines.append)
    assert set(results.done) == {"before", "after", "last"}
    assert results.done.index("before") < results.done.index("after")
    assert (tmp_path / "after").read_text() == "cpu\n"
    assert results.failed == {"bad": "eps must be positive, got -1", "wrong": "KeyError: 'nobody'"}
    assert results.skipped == ["after bad", "much later"]
    assert "failed: bad: eps must be positive, got -1" in {line.rpartition(" (")[0] for line in lines}
    assert lines[-1].endswith("(3 of 7 done)")
    assert capfd.readouterr().err.count("Traceback") == 1  # only for the bug


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


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_after_a_signal_the_rest_is_done(tmp_path: Path, which: signal.Signals) -> None:
    """In a measurement, which does not wait for signals as a training does."""
    before = signal.getsignal(which)
    thread = threading.Thread(target=once, args=(tmp_path / "second.begun", lambda: os.kill(os.getpid(), which)))
    thread.start()
    with pytest.raises(Interrupted) as stop:
        run_tasks(missing(tmp_path), ["cpu"], threads=1, log=print)
    thread.join()
    assert stop.value.signal == which and signal.getsignal(which) == before
    assert [task.name for task in missing(tmp_path)] == ["second", "third"]
    (tmp_path / "flag").touch()
    assert run_tasks(missing(tmp_path), ["cpu"], threads=1, log=print).done == ["second", "third"]
    assert (tmp_path / "third").read_text() == (tmp_path / "first").read_text() == "cpu\n"  # made once


def test_what_another_process_has_locked_is_waited_for_with_patience(tmp_path: Path) -> None:
    """As the run folder of a worker that was lost a moment ago."""
    task = Task(name="locked", work=write_locked, arguments=(tmp_path / "folder",))
    with ExitStack() as stack:
        stack.enter_context(locked_folder(tmp_path / "folder"))
        assert "in use by process" in str(task.run("cpu"))
        threading.Timer(0.5, stack.pop_all().close).start()
    assert task.run("cpu", patience=30) is None


def test_without_dask_there_is_one_worker_and_more_are_refused(monkeypatch) -> None:
    monkeypatch.setattr("advbnn.training.tasks.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "advbnn.training.cluster", None)
    assert device_list("cpu", jobs=None, pending=9) == ["cpu"]
    with pytest.raises(ImportError):
        device_list("cpu", jobs=2, pending=9)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.warns(UserWarning, match="cluster"):
        assert device_list("cuda", jobs=None, pending=9) == ["cuda:0"]


def test_devices_of_workers(monkeypatch) -> None:
    pytest.importorskip("distributed")
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
