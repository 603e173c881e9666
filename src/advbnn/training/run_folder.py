"""The folder of one run, and what it says about how the run came to be.

config.toml      everything that decides the result; a run goes on only with the same
run.json         versions, seed, data, git state of the working directory, command
metrics.jsonl    one line a logging interval
log.txt          the same for people, with what happened in between
checkpoints/     see `advbnn.training.checkpoint`
model.safetensors   the trained network, once the run is finished
last.safetensors    with early stopping, whose network is the best one: that of the last epoch
"""

import json
import platform
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from advbnn.defenses.rse import noise_levels
from advbnn.errors import RunError
from advbnn.files import append_text, read_json, read_text, write_atomically
from advbnn.training import checkpoint
from advbnn.training.checkpoint import WEIGHTS, Checkpoint

CONFIG, FACTS, METRICS, LOG, CHECKPOINTS = "config.toml", "run.json", "metrics.jsonl", "log.txt", "checkpoints"
MODEL, LAST = "model.safetensors", "last.safetensors"

NOISE_STD = "advbnn.noise_std"
"""A learned noise of the observations is no weight of the network, and noted with its weights under this name."""

INDIFFERENT = ("root", "cache", "log_every", "save_every", "tensorboard")
"""Settings that a run may change when it goes on."""

ADDED_LATER = {"precision": "auto"}
"""Settings that a run begun earlier does not name, with the value that it had all the same."""


class RunFolder:
    """Opens a folder for a run, new or to be continued, and writes into it.

    Args:
        path: the folder; made if there is none.
        config: TOML text of what decides the result.
        facts: what else to record of how the run came to be.
        resume: go on from the last checkpoint if there is one. Otherwise a folder with a run in it is refused.
    """

    def __init__(self, path: Path | str, config: str, facts: Mapping[str, Any], *, resume: bool) -> None:
        self.path = Path(path)
        self.checkpoint: Checkpoint | None = None
        if (self.path / CONFIG).exists():
            self._reopen(config, facts, resume)
        elif self.path.exists() and any(self.path.iterdir()):
            raise RunError(f"{self.path} holds files but no run; choose another folder, or an empty one")
        else:
            write_atomically(self.path / FACTS, json.dumps(dict(facts), indent=1).encode())
            write_atomically(self.path / CONFIG, config.encode())  # last: a folder with it has all of the others

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return self.checkpoint is not None and bool(self.checkpoint.facts.get("finished"))

    def save(self, **parts: Any) -> None:
        """Writes a checkpoint; arguments as for `checkpoint.save`."""
        self.checkpoint = checkpoint.save(self.path / CHECKPOINTS, **parts)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`."""
        file = self.path / METRICS
        return [json.loads(line) for line in read_text(file).splitlines()] if file.exists() else []

    def publish(self, name: str = MODEL) -> None:
        """Puts the weights of the last checkpoint beside the config, if they are not there."""
        if self.checkpoint is not None and not (self.path / name).exists():
            write_atomically(self.path / name, (self.checkpoint.folder / WEIGHTS).read_bytes())

    def write_metrics(self, line: Mapping[str, Any]) -> None:
        """Appends a line to `metrics.jsonl`."""
        append_text(self.path / METRICS, json.dumps(line) + "\n")

    def write_log(self, text: str) -> None:
        """Appends a line, with the time, to `log.txt`."""
        append_text(self.path / LOG, f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    def _reopen(self, config: str, facts: Mapping[str, Any], resume: bool) -> None:
        stored = read_text(self.path / CONFIG)
        if _decisive(stored) != _decisive(config):
            raise RunError(
                f"{self.path} holds a run with other settings: {_first_difference(stored, config)}; "
                "choose another folder"
            )
        before = read_json(self.path / FACTS)
        if before.get("data") != facts.get("data"):
            raise RunError(f"{self.path} holds a run on other data: {before.get('data')}, now {facts.get('data')}")
        old, new = (some.get("model", {}).get("structure") for some in (before, facts))
        if old is not None and old != new:  # a run begun earlier does not say
            raise RunError(
                f"{self.path} holds a run of another network: {_first_other_line(old, new)}; choose another folder"
            )
        self.checkpoint = checkpoint.latest(self.path / CHECKPOINTS)
        if not self.finished and before.get("processes") != facts.get("processes"):
            raise RunError(
                f"{self.path} holds a run of {before.get('processes')} processes, now there are "
                f"{facts.get('processes')}, whose noise would be another; start as many, or choose another folder"
            )
        if not resume and not self.finished:
            step = self.checkpoint.step if self.checkpoint else 0
            raise RunError(
                f"{self.path} holds this run, stopped after step {step}; resume it (--resume, or resume=True), "
                "or choose another folder"
            )
        self._forget_after(self.checkpoint.step if self.checkpoint else 0)

    def _forget_after(self, step: int) -> None:
        """Drops the lines that the run will write again, and what a kill left of the last one."""
        if (self.path / METRICS).exists():
            lines = read_text(self.path / METRICS).splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
            if kept != lines:
                write_atomically(self.path / METRICS, "".join(kept).encode())


def provenance(seed: int, **further: Any) -> dict[str, Any]:
    """Versions, machine, command and git state: what a reader of a result wants to know."""
    from advbnn import __version__

    versions = {
        "advbnn": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
    return {
        "seed": seed,
        **further,
        "versions": versions,
        "machine": f"{platform.system()} {platform.machine()}",
        "cuda": torch.version.cuda,
        "command": sys.argv,
        "git": git_state(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def git_state() -> dict[str, Any] | None:
    """The commit of the working directory and whether files differ from it; None outside of a repository."""
    try:
        commit = _git("rev-parse", "HEAD")
        return {"commit": commit, "changed_files": len(_git("status", "--porcelain").splitlines())}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _first_difference(stored: str, config: str) -> str:
    old, new = _decisive(stored), _decisive(config)
    key = next(key for key in [*old, *new] if old.get(key) != new.get(key))
    return f"{key} = {old.get(key, 'not set')!r} there, {new.get(key, 'not set')!r} now"


def _first_other_line(old: Sequence[str], new: Sequence[str]) -> str:
    there, now = next(pair for pair in zip_longest(old, new, fillvalue="nothing") if pair[0] != pair[1])
    return f"{there.strip()} there, {now.strip()} now"


def _decisive(config: str) -> dict[str, Any]:
    """The settings that decide the result."""
    settings = ADDED_LATER | _flat(tomllib.loads(config))
    return {key: value for key, value in settings.items() if key not in INDIFFERENT}


def _flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{path}{key}.") if isinstance(value, Mapping) else {path + key: value}
    return flat


def structure_of(model: nn.Module) -> list[str]:
    """What a network is built of, line by line: its layers, its prior and its noise, and no addresses in memory."""
    return re.sub(" at 0x[0-9a-f]+", "", f"{model!r}\nnoise={noise_levels(model)}").splitlines()
