"""Cheap tasks for tests of workers; at module level, so that another process can import them."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from advbnn.defenses.schedules import Constant
from advbnn.errors import ArgumentError
from advbnn.machine.files import locked_folder, write_atomically
from advbnn.training.loop import fit
from advbnn.training.state import TrainingState
from advbnn.training.tasks import Task
from workers import digits, resumable, train_resumable


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


def write_locked(device: str, folder: Path) -> None:
    """Needs a folder for itself."""
    with locked_folder(folder):
        write(device, folder / "file")


def train_and_stay(device: str, out: Path, begun: Path) -> None:
    """`train_resumable`, which stays in its step 12 the first time, and writes its process into a file."""
    advance = TrainingState.advance

    def stay(self: TrainingState, x: torch.Tensor, y: torch.Tensor) -> None:
        advance(self, x, y)
        if self.total_steps == 12 and not begun.exists():
            write_atomically(begun, str(os.getpid()).encode())
            time.sleep(600)

    TrainingState.advance = stay  # type: ignore[method-assign]
    try:
        train_resumable(out)
    finally:
        TrainingState.advance = advance  # type: ignore[method-assign]


def train_long(device: str, out: Path) -> None:
    """A training that ends only if it is stopped."""
    defense = replace(resumable(), schedule=Constant(epochs=100_000))
    net = defense.build(classes=10, shape=(1, 8, 8), seed=0)
    fit(net, digits(), defense, out=out, resume=True, save_every=3600, log_every=1)


def once(path: Path, act: Callable[[], object]) -> None:
    """Acts as soon as a file exists."""
    deadline = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    act()


def good_and_bad(folder: Path) -> list[Task]:
    """Two tasks that end well, in the order they need; two that fail; and one that must wait for these in vain."""
    return [
        Task(name="after", work=copy, arguments=(folder / "before", folder / "after"), needs=("before",)),
        Task(name="before", work=write, arguments=(folder / "before",)),
        Task(name="bad", work=refuse),
        Task(name="wrong", work=stumble),
        Task(name="after bad", work=write, arguments=(folder / "never",), needs=("bad",)),
    ]
