"""The folder of one run.

config.toml         all settings; a run resumes only with those that decide its result unchanged
run.json            versions, seed, data, commit of the working directory, command
metrics.jsonl       one line per logging interval
log.txt             the same for people, with events in between
checkpoints/        see `advbnn.training.checkpoint`
model.safetensors   the trained network, once the run is finished
last.safetensors    with early stopping, where the model is the best epoch: the last epoch
modes/              of a run of several modes: a run folder for each, see `advbnn.training.modes`
SHA256SUMS          of the two, for `load_trained` and for `sha256sum --check`
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from advbnn.errors import AdvbnnError, CheckpointError, ConfigError, FileError, RunError
from advbnn.machine import files
from advbnn.training import checkpoint
from advbnn.training.checkpoint import WEIGHTS, Checkpoint
from advbnn.training.config import CONFIG as CONFIG
from advbnn.training.config import Config, first_difference
from advbnn.training.provenance import other_arithmetic

FACTS, METRICS, LOG, CHECKPOINTS = "run.json", "metrics.jsonl", "log.txt", "checkpoints"
MODEL, LAST, SUMS = "model.safetensors", "last.safetensors", "SHA256SUMS"
MODES = "modes"

NOISE_STD = "advbnn.noise_std"
"""The note, in the file of the weights, with the learned noise of a Gaussian likelihood."""


COPY, _SETTINGS = "run", "config"
"""The facts in a checkpoint that repeat run.json and config.toml."""

_ALWAYS = ("step", "epoch", "lr", "kl_weight", "loss", "nll", "kl", "examples_per_second")
"""What every line of metrics has."""


class RunFolder:
    """A folder opened for a new run, or to resume one; without `resume`, an unfinished run is refused.

    Only one process may open it at a time, see `locked_folder`. What a killed process has left is removed, and
    `run.json` and `metrics.jsonl` are repaired if they are damaged; `notes` says so.
    """

    def __init__(self, path: Path | str, config: Config, facts: Mapping[str, Any], *, resume: bool) -> None:
        self.path = Path(path)
        self.checkpoint: Checkpoint | None = None
        self.facts: dict[str, Any] = json.loads(json.dumps(dict(facts)))
        self.notes: list[str] = []
        self._settings = config.to_toml()
        if (self.path / CONFIG).exists():
            self._reopen(config, resume)
        elif _holds_something_else(self.path):
            raise RunError(f"{self.path} has files but no run; choose another folder, or an empty one")
        else:
            self._write_facts()
            files.write_atomically(self.path / CONFIG, self._settings.encode())  # last: it marks a complete run folder
        for name in (FACTS, CONFIG, METRICS, MODEL, LAST, SUMS):
            for leftover in files.leftovers(self.path / name):
                leftover.unlink(missing_ok=True)

    @property
    def finished(self) -> bool:
        return self.checkpoint is not None and bool(self.checkpoint.facts.get("finished"))

    @property
    def state(self) -> str:
        """How far the run is, if it is not finished."""
        return f"stopped after step {self.checkpoint.step if self.checkpoint else 0}"

    def save(self, *, facts: Mapping[str, Any], **parts: Any) -> None:
        """Write a checkpoint; arguments as for `checkpoint.save`."""
        copies = {COPY: self.facts, _SETTINGS: self._settings}
        self.checkpoint = checkpoint.save(self.path / CHECKPOINTS, facts={**facts, **copies}, **parts)

    def publish(self, name: str = MODEL) -> None:
        """Copy the weights of the last checkpoint into the run folder, unless the file is there and sound."""
        assert self.checkpoint is not None
        weights, sums = self.checkpoint.folder / WEIGHTS, _sums(self.path)
        digest = files.file_digest(weights)
        if sums.get(name) == digest and (self.path / name).exists() and files.file_digest(self.path / name) == digest:
            return
        write_sum(self.path, name, digest)
        files.write_atomically(self.path / name, weights.read_bytes())

    def write_metrics(self, line: Mapping[str, Any]) -> None:
        files.append_text(self.path / METRICS, json.dumps(line) + "\n")

    def write_log(self, text: str) -> None:
        """Append a line, with the time, to `log.txt`."""
        files.append_text(self.path / LOG, f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    def _write_facts(self) -> None:
        files.write_atomically(self.path / FACTS, json.dumps(self.facts, indent=1).encode())

    def _reopen(self, config: Config, resume: bool) -> None:
        self.checkpoint = checkpoint.recover(self.path / CHECKPOINTS)
        if difference := self._stored_config(config).difference(config):
            remedy = "choose another folder"
            if difference.startswith("modes.count"):  # which may only grow
                remedy = f"set the number that it has, or {remedy}"
            raise RunError(f"{self.path} holds a run with other settings: {difference}; {remedy}")
        facts, before = self.facts, self._stored_facts()
        if difference := first_difference(before["data"], facts["data"]):
            raise RunError(f"{self.path} holds a run on other data: {difference}")
        old, new = (some["model"].get("structure", []) for some in (before, facts))
        if old != new:
            there, now = next(pair for pair in zip_longest(old, new, fillvalue="nothing") if pair[0] != pair[1])
            found = f"{there.strip()} there, {now.strip()} now"
            raise RunError(f"{self.path} holds a run of another network: {found}; choose another folder")
        self._check_start(before.get("init"), facts["init"])
        if not self.finished and before["processes"] != facts["processes"]:
            raise RunError(
                f"{self.path} holds a run with {before['processes']} processes, now there are {facts['processes']}; "
                "start the same number, or choose another folder"
            )
        step = self.checkpoint.step if self.checkpoint else 0
        if not resume and not self.finished:
            raise RunError(f"{self.path} holds this run, {self.state}; use --resume or resume=True")
        if not self.finished and (note := other_arithmetic(before, facts)):
            self.notes.append(note)
        self.facts = before
        self._repair_metrics(step)

    def _check_start(self, before: object, now: Sequence[Sequence[str]]) -> None:
        """Refuse other initial weights; files may have moved. Older versions kept no list of them."""
        if isinstance(before, list) and [digest for _, digest in before] != [digest for _, digest in now]:
            raise RunError(f"{self.path} holds a run with other initial weights, init; choose another folder")

    def _stored_config(self, now: Config) -> Config:
        """The settings in config.toml; if they are not as they were, the copy in the checkpoint is written again."""
        copy = self.checkpoint.facts.get(_SETTINGS) if self.checkpoint else None
        try:
            written = stored_config(self.path)
            if copy is None or not written.difference(now):
                return written
        except AdvbnnError:
            if copy is None:
                raise
        before = Config.from_run(copy)
        self._settings = copy
        if not before.difference(now):
            files.write_atomically(self.path / CONFIG, copy.encode())
            self.notes.append(f"{CONFIG} was damaged and is written again")
        return before

    def _stored_facts(self) -> dict[str, Any]:
        """What run.json said when the run began; the checkpoint has a copy of it."""
        try:
            written: dict[str, Any] | None = read_facts(self.path)
        except AdvbnnError:
            written = None
        copy = self.checkpoint.facts.get(COPY) if self.checkpoint else None
        # without a copy nothing has been trained, or by a version without copies
        before: dict[str, Any] = copy or written or self.facts
        if written != before:
            self.facts = before
            self._write_facts()
            self.notes.append(f"{FACTS} was damaged and is written again")
        return before

    def _repair_metrics(self, step: int) -> None:
        """Drop damaged lines, and those that the run will write again."""
        file = self.path / METRICS
        parsed = [(line, _metrics_of(line)) for line in _lines(file)]
        kept = [line for line, found in parsed if found is not None and found["step"] <= step]
        # a last line that was cut off by a kill is not worth a note
        if damaged := sum(found is None and line.endswith(b"\n") for line, found in parsed):
            self.notes.append(f"{METRICS}: damaged lines are left out, {damaged} of {len(parsed)}")
        if len(kept) < len(parsed):
            files.write_atomically(file, b"".join(kept))


def read_facts(folder: Path) -> dict[str, Any]:
    """The contents of run.json, if they are complete."""
    facts: Any = files.read_json(folder / FACTS)
    if not isinstance(facts, dict) or not {"data", "model", "processes"} <= facts.keys():
        raise FileError(f"{folder / FACTS} is damaged, something is missing in it; restore it from a copy")
    return facts


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, without damaged ones."""
    return [found for line in _lines(file) if (found := _metrics_of(line)) is not None]


def _lines(file: Path) -> list[bytes]:
    if not file.exists():
        return []
    with files.explain_file_errors(file, "cannot be read", "check its permissions"):
        return file.read_bytes().splitlines(keepends=True)


def write_sum(folder: Path, name: str, digest: str) -> None:
    """Note the SHA-256 of a file of weights, before it gets its name, so that it never lacks its checksum."""
    lines = [f"{each}  {file}\n" for file, each in sorted((_sums(folder) | {name: digest}).items())]
    files.write_atomically(folder / SUMS, "".join(lines).encode())


def verify_weights(folder: Path, name: str) -> Path:
    """The path of a file of weights, if it has its checksum; a folder without checksums is accepted."""
    if not is_sound(folder, name):
        raise CheckpointError(
            f"{folder / name} is damaged, or {SUMS} beside it: its checksum differs; restore both from a copy"
            + (f", or resume the run, which writes them again: {resume_command(folder)}" if name == MODEL else "")
        )
    return folder / name


def is_sound(folder: Path, name: str) -> bool:
    """Whether a file of weights has its checksum; in a folder without checksums any file has."""
    return not (folder / SUMS).exists() or _sums(folder).get(name) == files.file_digest(folder / name)


def run_label(folder: Path) -> str:
    """How records call a run: by the name of its folder; a mode also by that of its run, as in `"digits/modes/0"`."""
    path = folder.resolve()
    of_a_run = path.parent.name == MODES and (path.parents[1] / CONFIG).exists()
    return "/".join(path.parts[-3:]) if of_a_run else path.name


def resume_command(folder: Path) -> str:
    """How to resume the run in a folder from the shell."""
    return f"advbnn train {folder / CONFIG} --out {folder} --resume"


def _sums(folder: Path) -> dict[str, str]:
    """The checksums in a folder, by file; lines that are damaged are left out."""
    if not (folder / SUMS).exists():
        return {}
    with files.explain_file_errors(folder / SUMS, "cannot be read", "check its permissions"):
        text = (folder / SUMS).read_text(encoding="utf-8", errors="replace")
    return {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", text, re.MULTILINE)}


def _metrics_of(line: bytes) -> dict[str, Any] | None:
    """The metrics in a line; None if it is incomplete or damaged."""
    try:
        found = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    numbers = isinstance(found, dict) and all(isinstance(found.get(name), int | float) for name in _ALWAYS)
    return found if numbers else None


def _holds_something_else(folder: Path) -> bool:
    """Whether a folder holds more than the beginnings of a run that was killed before its config.toml was written."""
    if not folder.exists():
        return False
    begun = {each for name in (FACTS, CONFIG) for each in files.leftovers(folder / name)}
    others = {each.name for each in folder.iterdir() if each not in begun} - {files.LOCK}
    if others != {FACTS}:
        return bool(others)
    try:
        read_facts(folder)  # somebody else's run.json is not replaced
    except AdvbnnError:
        return True
    return False


def stored_config(folder: Path) -> Config:
    try:
        return Config.from_run(files.read_text(folder / CONFIG))
    except ConfigError as error:
        raise RunError(
            f"{folder / CONFIG} cannot be read: {error}; restore it from a copy, or use the version of advbnn that "
            "wrote it"
        ) from error
