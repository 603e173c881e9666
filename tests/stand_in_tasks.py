"""Cheap tasks for tests of workers; at module level, so that another process can import them."""

import os
import signal
import sys
import time
import warnings
from pathlib import Path

from advbnn.errors import ArgumentError
from advbnn.training.workers import Task, run_tasks


def write(device: str, path: Path) -> None:
    """Adds a line to a file, which counts the calls and names the device."""
    with path.open("a") as file:
        file.write(f"{device}\n")


def say(device: str, text: str) -> None:
    """Prints, and warns."""
    print(text, file=sys.stderr)
    warnings.warn("it is late", stacklevel=1)


def copy(device: str, source: Path, target: Path) -> None:
    """Fails unless the task before it is done."""
    target.write_text(source.read_text())


def refuse(device: str) -> None:
    """An error of the user."""
    raise ArgumentError("eps must be positive, got -1")


def stumble(device: str) -> None:
    """A bug."""
    raise KeyError("nobody")


def die(device: str) -> None:
    """Killed, as for lack of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(device: str, flag: Path, path: Path) -> None:
    """Waits until a file exists; another file shows that it waits."""
    path.with_suffix(".begun").touch()
    while not flag.exists():
        time.sleep(0.05)
    write(device, path)


def missing(folder: Path) -> list[Task]:
    """Three tasks, without those whose file exists; the second waits for a flag."""
    work = {
        "first": Task(name="first", work=write, arguments=(folder / "first",)),
        "second": Task(name="second", work=wait_for, arguments=(folder / "flag", folder / "second"), needs=("first",)),
        "third": Task(name="third", work=copy, arguments=(folder / "second", folder / "third"), needs=("second",)),
    }
    return [task for name, task in work.items() if not (folder / name).exists()]


if __name__ == "__main__":
    run_tasks(missing(Path(sys.argv[1])), ["cpu"], threads=1, log=print)
