"""A short training, killed at its file operations and resumed: what tests and `make kills` run in a process of its own.

Every training is a child that is forked and ends by `os._exit` at its n-th file operation, as by kill -9: nothing is
flushed, closed or cleaned up. Writes that are not atomic leave the first half of their content.
"""

import importlib
import json
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from advbnn.defenses.defense import Averaging, Defense, EarlyStopping
from advbnn.machine import files
from advbnn.machine.files import file_digest
from advbnn.training import checkpoint
from advbnn.training.loop import fit
from quick import quick
from workers import digits

KINDS: dict[str, Callable[[], Defense]] = {
    "plain": lambda: quick("bnn"),
    "average": lambda: quick("adv", averaging=Averaging(decay=0.9)),
    "early stopping": lambda: quick("bnn", early_stopping=EarlyStopping(fraction=0.25, samples=1)),
    "langevin": lambda: quick("none", optimizer={"kind": "langevin", "burn_in": 1, "every": 1}),
    "modes": lambda: quick("adv"),
}
"""What is trained, by name; "modes" are two of it in one run."""

KILLED = 9
_EVENTS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")


class Operations:
    """Counts the file operations of this process in a folder, and ends it before number `last`."""

    def __init__(self, folder: Path, last: int) -> None:
        self.folder, self.last, self.count = str(folder), last, 0

    def one(self, spoil: Callable[[], object] = lambda: None) -> None:
        """An operation; `spoil` does the half of it that is left if the process ends within."""
        self.count += 1
        if self.count == self.last:
            spoil()
            os._exit(KILLED)

    def watch(self) -> None:
        """Counts from now on, until the process ends."""
        sync, append, write, save_model = os.fsync, files.append_text, Path.write_bytes, checkpoint.save_model
        sys.addaudithook(self._audited)

        def fsync(descriptor: int) -> None:
            self.one()
            sync(descriptor)

        def append_text(path: Path, text: str) -> None:
            self.one(lambda: append(path, text[: len(text) // 2]))
            append(path, text)

        def write_bytes(path: Path, content: memoryview) -> int:
            self.one(lambda: write(path, content[: len(content) // 2]))
            return write(path, content)

        def save_weights(model: Any, path: str, **options: Any) -> None:
            save_model(model, path, **options)
            self.one(lambda: os.truncate(path, os.path.getsize(path) // 2))

        os.fsync, files.append_text = fsync, append_text  # type: ignore[assignment]
        Path.write_bytes, checkpoint.save_model = write_bytes, save_weights  # type: ignore[assignment,method-assign]

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not writes and event not in _EVENTS:
            return
        path = arguments[0]
        if isinstance(path, str | os.PathLike):  # relative to an open folder when a tree is deleted
            path = os.fspath(path)
            if not os.path.isabs(path) or path.startswith(self.folder):
                self.one()


def in_child(work: Callable[[], object]) -> int:
    """The exit status of a forked process that does the work: 1 if it raises."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def train(kind: str, out: Path, last: int = 0, note: Path | None = None) -> None:
    """A training of four steps with a checkpoint after each, ended before the given file operation."""
    operations = Operations(out, last)
    if last or note:
        operations.watch()
    value = KINDS[kind]()
    net = value.build(classes=10, shape=(1, 8, 8), seed=0)
    fit(
        net,
        digits(32),
        value,
        seed=5,
        out=out,
        resume=True,
        save_every=0.0,
        log_every=1,
        modes=2 if kind == "modes" else 1,
    )
    if note is not None:
        found = {"operations": operations.count, "modules": [name for name in sys.modules if "__main__" not in name]}
        note.write_text(json.dumps(found))


def result(out: Path) -> dict[str, Any]:
    """What a run leaves, but for times: weights, metrics, and the names of its files."""
    files = [path for path in sorted(out.rglob("metrics.jsonl")) if path.is_file()]
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    weights = [path for path in sorted(out.rglob("*.safetensors")) if "checkpoints" not in path.parts]
    return {
        "weights": {str(path.relative_to(out)): file_digest(path) for path in weights},
        "metrics": [{name: value for name, value in line.items() if "second" not in name} for line in lines],
        # the lock of a killed process that has nothing left to do may stay: it locks nothing
        "files": sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.name != ".lock"),
    }


def kill(kinds: list[str], count: int | None, report: Path) -> None:
    """Kills a training of each kind at `count` random file operations, at all of them if None, and resumes it.

    Writes for each kind how many operations there are, how many were tried, and what went wrong.
    """
    torch.set_num_threads(1)
    found = {}
    for kind in kinds:
        with tempfile.TemporaryDirectory() as place:
            found[kind] = _kill_one_kind(kind, count, Path(place))
    report.write_text(json.dumps(found))


def _kill_one_kind(kind: str, count: int | None, place: Path) -> dict[str, Any]:
    whole, note = place / "whole", place / "note"
    assert in_child(lambda: train(kind, whole, note=note)) == 0
    noted, expected = json.loads(note.read_text()), result(whole)
    for name in noted["modules"]:
        with suppress(ImportError):  # the children inherit what takes a second to import
            importlib.import_module(name)
    points = range(1, noted["operations"] + 1)
    chosen = points if count is None else sorted(random.sample(points, count))
    failed = {point: reason for point in chosen if (reason := _try(kind, place, point, expected))}
    return {"operations": len(points), "tried": len(chosen), "failed": failed}


def _try(kind: str, place: Path, point: int, expected: dict[str, Any]) -> str | None:
    """What goes wrong if a training is killed at one operation and resumed."""
    out = place / str(point)
    if (status := in_child(lambda: train(kind, out, point))) != KILLED:
        return f"not killed, status {status}"
    if (status := in_child(lambda: train(kind, out))) != 0:
        return f"not resumed, status {status}, with {sorted(os.listdir(out)) if out.exists() else 'no folder'}"
    got = result(out)
    return next((f"other {name}: {got[name]}" for name in expected if got[name] != expected[name]), None)
