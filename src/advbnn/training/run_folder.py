"""The folder of one run.

config.toml         all settings; a run resumes only with those that decide its result unchanged
run.json            versions, seed, data, git state of the working directory, command
metrics.jsonl       one line per logging interval
log.txt             the same for people, with events in between
checkpoints/        see `advbnn.training.checkpoint`
model.safetensors   the trained network, once the run is finished
last.safetensors    with early stopping, where the model is the best epoch: the last epoch
modes/              of a run of several modes: a run folder for each, see `advbnn.training.modes`
"""

import json
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy
import torch

from advbnn.errors import ConfigError, RunError
from advbnn.files import append_text, read_json, read_text, write_atomically
from advbnn.training import checkpoint
from advbnn.training.checkpoint import WEIGHTS, Checkpoint
from advbnn.training.config import CONFIG as CONFIG
from advbnn.training.config import Config

FACTS, METRICS, LOG, CHECKPOINTS = "run.json", "metrics.jsonl", "log.txt", "checkpoints"
MODEL, LAST = "model.safetensors", "last.safetensors"
MODES = "modes"

NOISE_STD = "advbnn.noise_std"
"""The note, in the file of the weights, with the learned noise of a Gaussian likelihood."""


class RunFolder:
    """A folder opened for a new run, or to resume one; without `resume`, an unfinished run is refused."""

    def __init__(self, path: Path | str, config: Config, facts: Mapping[str, Any], *, resume: bool) -> None:
        self.path = Path(path)
        self.checkpoint: Checkpoint | None = None
        if (self.path / CONFIG).exists():
            self._reopen(config, facts, resume)
        elif self.path.exists() and any(self.path.iterdir()):
            raise RunError(f"{self.path} has files but no run; choose another folder, or an empty one")
        else:
            write_atomically(self.path / FACTS, json.dumps(dict(facts), indent=1).encode())
            write_atomically(self.path / CONFIG, config.to_toml().encode())  # last: it marks a complete run folder

    @property
    def finished(self) -> bool:
        return self.checkpoint is not None and bool(self.checkpoint.facts.get("finished"))

    def save(self, **parts: Any) -> None:
        """Write a checkpoint; arguments as for `checkpoint.save`."""
        self.checkpoint = checkpoint.save(self.path / CHECKPOINTS, **parts)

    def metrics(self) -> list[dict[str, Any]]:
        file = self.path / METRICS
        return [json.loads(line) for line in read_text(file).splitlines()] if file.exists() else []

    def publish(self, name: str = MODEL) -> None:
        """Copy the weights of the last checkpoint into the run folder, unless the file exists."""
        if self.checkpoint is not None and not (self.path / name).exists():
            write_atomically(self.path / name, (self.checkpoint.folder / WEIGHTS).read_bytes())

    def write_metrics(self, line: Mapping[str, Any]) -> None:
        append_text(self.path / METRICS, json.dumps(line) + "\n")

    def write_log(self, text: str) -> None:
        """Append a line, with the time, to `log.txt`."""
        append_text(self.path / LOG, f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    def _reopen(self, config: Config, facts: Mapping[str, Any], resume: bool) -> None:
        if difference := stored_config(self.path).difference(config):
            raise RunError(f"{self.path} holds a run with other settings: {difference}; choose another folder")
        before = read_json(self.path / FACTS)
        if before["data"] != facts["data"]:
            raise RunError(f"{self.path} holds a run on other data: {before['data']}, now {facts['data']}")
        old, new = (some["model"].get("structure", []) for some in (before, facts))
        if old != new:
            there, now = next(pair for pair in zip_longest(old, new, fillvalue="nothing") if pair[0] != pair[1])
            raise RunError(f"{self.path} holds a run of another network: {there.strip()} there, {now.strip()} now")
        self.checkpoint = checkpoint.latest(self.path / CHECKPOINTS)
        if not self.finished and before["processes"] != facts["processes"]:
            raise RunError(
                f"{self.path} holds a run with {before['processes']} processes, now there are {facts['processes']}; "
                "start the same number, or choose another folder"
            )
        step = self.checkpoint.step if self.checkpoint else 0
        if not resume and not self.finished:
            raise RunError(f"{self.path} holds this run, stopped after step {step}; use --resume or resume=True")
        # drop the lines that the run will write again, and a last line that was cut off by a kill
        if (self.path / METRICS).exists():
            lines = read_text(self.path / METRICS).splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
            if kept != lines:
                write_atomically(self.path / METRICS, "".join(kept).encode())


def stored_config(folder: Path) -> Config:
    """The settings of the run in a folder."""
    try:
        return Config.from_run(read_text(folder / CONFIG))
    except ConfigError as error:
        raise RunError(
            f"{folder / CONFIG} cannot be read: {error}; restore it, or use the version of advbnn that wrote it"
        ) from error


def provenance(seed: int, **further: Any) -> dict[str, Any]:
    """Versions, machine, command and git state."""
    from advbnn import __version__

    packages = {"advbnn": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    return {
        "seed": seed,
        **further,
        "versions": {"python": platform.python_version(), **packages},
        "machine": f"{platform.system()} {platform.machine()}",
        "cuda": torch.version.cuda,
        "command": sys.argv,
        "git": _git_state(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _git_state() -> dict[str, Any] | None:
    """The commit of the working directory and the number of changed files; None outside a repository."""
    try:
        commit, changed = (
            subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=10).stdout.strip()
            for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed_files": len(changed.splitlines())}
