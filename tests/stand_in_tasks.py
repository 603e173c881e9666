"""Cheap work for tests of the processes that share tasks; functions of a module, as a process of its own needs them."""

import os
import signal
import sys
import time
import warnings
from pathlib import Path

from advbnn.paper.workers import Task, perform


def write(device: str, path: Path) -> None:
    """Adds a line to a file, so that it can be told how often it was done, and where."""
    with path.open("a") as file:
        file.write(f"{device}\n")


def say(device: str, text: str) -> None:
    """Talks while working, and warns."""
    print(text, file=sys.stderr)
    warnings.warn("it is late", stacklevel=1)


def copy(device: str, source: Path, target: Path) -> None:
    """Fails unless the task before it is done."""
    target.write_text(source.read_text())


def refuse(device: str) -> None:
    """What a user can put right."""
    raise ValueError("eps must be positive, got -1")


def stumble(device: str) -> None:
    """What nobody thought of."""
    raise KeyError("nobody")


def die(device: str) -> None:
    """As the system's memory killer would have it."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(device: str, flag: Path, path: Path) -> None:
    """Goes on only once a file is there; tells by another that it waits."""
    path.with_suffix(".begun").touch()
    while not flag.exists():
        time.sleep(0.05)
    write(device, path)


def missing(folder: Path) -> list[Task]:
    """Three pieces of work, those that left their file excepted; the second waits for a flag."""
    work = {
        "first": Task(name="first", work=write, arguments=(folder / "first",)),
        "second": Task(name="second", work=wait_for, arguments=(folder / "flag", folder / "second"), needs=("first",)),
        "third": Task(name="third", work=copy, arguments=(folder / "second", folder / "third"), needs=("second",)),
    }
    return [task for name, task in work.items() if not (folder / name).exists()]


if __name__ == "__main__":
    perform(missing(Path(sys.argv[1])), ["cpu"], threads=1, say=print)
