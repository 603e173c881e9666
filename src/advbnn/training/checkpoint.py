"""Checkpoints: written whole or not at all, verified when read, with the previous one kept.

A checkpoint is a folder that gets its name only when all its files are on the disk:

    step-00001200/
      weights.safetensors   the state of the model, with notes in its header
      training.pt           the rest of the state: tensors and plain values, read with weights_only=True
      manifest.json         the step, facts, the SHA-256 of the two files, and its own
"""

import hashlib
import io
import json
import os
import shutil
import textwrap
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from advbnn.bayes.modes import Modes
from advbnn.errors import CheckpointError, FileError
from advbnn.machine.files import explain_file_errors, file_digest

FORMAT = 2
WEIGHTS, TRAINING, MANIFEST = "weights.safetensors", "training.pt", "manifest.json"
KEPT = 2
_WRITING, _DELETING = ".writing-", ".deleting-"


class CheckpointWarning(UserWarning):
    """The newest checkpoint is damaged and an older one is used."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk, after `step` updates, with the plain values that were saved with it."""

    folder: Path
    step: int
    facts: Mapping[str, Any]

    def load_weights(self, model: nn.Module) -> None:
        """Load the weights into `model`, whose parameters and buffers must have the same names and shapes."""
        load_weights(model, self.folder / WEIGHTS)

    def training_state(self) -> Any:
        """The state besides the weights, on the CPU."""
        return torch.load(self.folder / TRAINING, map_location="cpu", weights_only=True)


def save(
    folder: Path | str,
    *,
    step: int,
    model: nn.Module,
    training: Mapping[str, Any],
    facts: Mapping[str, Any],
    notes: Mapping[str, str] | None = None,
) -> Checkpoint:
    """Write a checkpoint into `folder` and delete all but the newest two.

    A full disk or the end of the process, at any moment, leaves the previous checkpoints intact.

    `training` has tensors and plain values, `facts` plain values for JSON, and `notes` text that stays with the weights
    when their file is copied; see `notes_of`.
    """
    folder = Path(folder)
    with explain_file_errors(folder, "cannot be written", "make room, or change the permissions, and resume the run"):
        folder.mkdir(parents=True, exist_ok=True)
    final, temporary = folder / f"step-{step:08d}", folder / f"{_WRITING}{step:08d}"
    try:
        for leftover in folder.glob(f"{_WRITING}*"):
            shutil.rmtree(leftover)
        temporary.mkdir()
        _write_weights(model, temporary / WEIGHTS, notes or {})
        content = io.BytesIO()  # torch hides the reason why it cannot write into a file
        torch.save(dict(training), content)
        (temporary / TRAINING).write_bytes(content.getbuffer())
        digests = {name: file_digest(temporary / name) for name in (WEIGHTS, TRAINING)}
        manifest = {"format": FORMAT, "step": step, "sha256": digests, "facts": dict(facts)}
        sealed = {**manifest, "seal": _seal(manifest)}
        (temporary / MANIFEST).write_text(json.dumps(sealed, indent=1), encoding="utf-8")
        for path in (*temporary.iterdir(), temporary):
            _sync(path)
        _set_aside(final)  # one of the same step
        os.rename(temporary, final)
        _sync(folder)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"{final} cannot be written: {error}. Remove the cause (is the disk full?) and resume the run"
        ) from error
    # damaged checkpoints of later steps, from which the run could not resume, do not count
    good = [one for one in _newest_first(folder) if one <= final or isinstance(_verified(one), Checkpoint)]
    with explain_file_errors(folder, "has old checkpoints that cannot be deleted", "delete them and resume the run"):
        for old in _newest_first(folder):
            if old != final and old not in good[:KEPT]:
                _set_aside(old)
        for old in folder.glob(f"{_DELETING}*"):
            shutil.rmtree(old)
    return Checkpoint(final, step, dict(facts))


def latest(folder: Path | str) -> Checkpoint | None:
    """The newest undamaged checkpoint in `folder`; None if there is no checkpoint.

    A damaged one is skipped with a `CheckpointWarning`. If all are damaged, that is an error, since the run must not
    silently start again.
    """
    problems: list[str] = []
    # a kill between the two renames that replace a checkpoint leaves only the old one, set aside
    for candidate in (*_newest_first(Path(folder)), *Path(folder).glob(f"{_DELETING}step-*")):
        found = _verified(candidate)
        if isinstance(found, Checkpoint):
            if problems:
                text = f"damaged, so {candidate.name} is used instead: {'; '.join(problems)}"
                warnings.warn(text, CheckpointWarning, stacklevel=2)
            return found
        problems.append(f"{candidate.name}: {found}")
    if problems:
        raise CheckpointError(
            f"every checkpoint in {folder} is damaged: {'; '.join(problems)}. Restore one from a copy, or delete them "
            "to start again"
        )
    return None


def save_weights(model: nn.Module, file: Path, notes: Mapping[str, str], note_digest: Callable[[str], None]) -> None:
    """Write the weights of `model` as a safetensors file, whole or not at all; its SHA-256 is noted first."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        _write_weights(model, temporary, notes)
        _sync(temporary)
        note_digest(file_digest(temporary))
        os.replace(temporary, file)
    except (OSError, RuntimeError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(f"{file} cannot be written: {error}. Remove the cause and resume the run") from error


def recover(folder: Path | str) -> Checkpoint | None:
    """The `latest` checkpoint for the process that will write here: what a killed one has left is tidied up."""
    folder, found = Path(folder), latest(folder)
    with explain_file_errors(folder, "cannot be tidied up", "change its permissions"):
        if found is not None and found.folder.name.startswith(_DELETING):
            place = folder / found.folder.name.removeprefix(_DELETING)
            shutil.rmtree(place, ignore_errors=True)
            os.rename(found.folder, place)
            found = replace(found, folder=place)
        for leftover in (*folder.glob(f"{_WRITING}*"), *folder.glob(f"{_DELETING}*")):
            shutil.rmtree(leftover)
    return found


def load_weights(model: nn.Module, file: Path | str) -> None:
    """Load the weights of a safetensors file into `model`; every name and shape must fit."""
    try:
        with explain_file_errors(file, "cannot be read", "give the path of a safetensors file"):
            if Path(file).is_dir():
                raise FileError(
                    f"{file} is a folder; give a safetensors file, such as {Path(file) / 'model.safetensors'}"
                )
            load_model(model, str(file))
    except SafetensorError as error:
        raise CheckpointError(
            f"{file} is no safetensors file, or is damaged ({error}); restore it from a copy, or load a checkpoint of "
            "PyTorch that you trust by model.load_state_dict(torch.load(file, weights_only=True))"
        ) from error
    except RuntimeError as error:
        raise CheckpointError(f"{file} does not fit the network: {_misfit(model, file, str(error))}") from error


def _misfit(model: nn.Module, file: Path | str, reason: str) -> str:
    """Why a file of weights does not fit a network, and the remedy."""
    with safe_open(str(file), "pt") as opened:
        names = opened.keys()
    mixture = {name.partition(".")[0] for name in names} == {"net", "_extra_state"}
    if mixture and not isinstance(model, Modes):
        return "it holds a mixture of networks, and this is one; load it into Modes([net])"
    if isinstance(model, Modes) and not mixture:
        return "it holds one network, and this is a mixture; load it into one of the mixture's, such as modes.net[0]"
    return (
        f"{textwrap.shorten(reason, 200, placeholder=' ...')} Build the network as for the run: config.toml and "
        "run.json say how, unless one is damaged; a run of your own network is loaded by load_trained(folder, net=...)"
    )


def notes_of(file: Path | str) -> dict[str, str]:
    """The notes in the header of a safetensors file."""
    with safe_open(str(file), "pt") as opened:
        return opened.metadata() or {}


def _write_weights(model: nn.Module, file: Path, notes: Mapping[str, str]) -> None:
    file.touch()
    permissions = file.stat().st_mode
    save_model(model, str(file), metadata=dict(notes))
    file.chmod(permissions)  # safetensors leaves a file that nobody else can read, also on the machine of a colleague


def _sync(path: Path) -> None:
    """Wait until the contents of a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _verified(folder: Path) -> Checkpoint | str:
    """The checkpoint in a folder, or what is wrong with it."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return f"{MANIFEST} has format {manifest['format']}, this version reads {FORMAT}"
        if manifest.pop("seal") != _seal(manifest):
            return f"{MANIFEST} is not what was written (its checksum differs)"
        for name, digest in manifest["sha256"].items():
            if file_digest(folder / name) != digest:
                return f"{name} is not what was written (its checksum differs)"
        return Checkpoint(folder, int(manifest["step"]), manifest["facts"])
    except OSError as error:
        return str(error)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} is damaged ({type(error).__name__}: {error})"


def _seal(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"), reverse=True)


def _set_aside(folder: Path) -> None:
    """Rename a checkpoint, if it exists, so that a kill never leaves half a checkpoint under its name."""
    if folder.exists():
        aside = folder.with_name(f"{_DELETING}{folder.name}")
        if aside.exists():
            shutil.rmtree(aside)
        os.rename(folder, aside)
