"""Checkpoints: written whole or not at all, verified when read, with the previous one kept.

A checkpoint is a folder that gets its name only when all its files are on the disk:

    step-00001200/
      weights.safetensors   the state of the model, with notes in its header
      training.pt           the rest of the state: tensors and plain values, read with weights_only=True
      manifest.json         the step, facts, and the SHA-256 of the two files
"""

import hashlib
import json
import os
import shutil
import textwrap
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from advbnn.errors import ArgumentError, CheckpointError

FORMAT = 1
WEIGHTS, TRAINING, MANIFEST = "weights.safetensors", "training.pt", "manifest.json"
KEPT = 2


class CheckpointWarning(UserWarning):
    """The newest checkpoint is damaged and an older one is used."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk.

    Attributes:
        folder: its folder.
        step: the number of updates before it.
        facts: plain values that were saved with it.
    """

    folder: Path
    step: int
    facts: Mapping[str, Any]

    def load_weights(self, model: nn.Module) -> None:
        """Load the weights into `model`, whose parameters and buffers must have the same names and shapes."""
        load_weights(model, self.folder / WEIGHTS)

    def notes(self) -> dict[str, str]:
        """The notes in the header of the weights."""
        return notes_of(self.folder / WEIGHTS)

    def training_state(self, device: torch.device | str = "cpu") -> Any:
        """The state besides the weights."""
        return torch.load(self.folder / TRAINING, map_location=device, weights_only=True)


def save(
    folder: Path | str,
    *,
    step: int,
    model: nn.Module,
    training: Mapping[str, Any],
    facts: Mapping[str, Any],
    notes: Mapping[str, str] | None = None,
    keep: int = KEPT,
) -> Checkpoint:
    """Write a checkpoint into `folder` and delete all but the newest `keep`.

    A full disk or the end of the process, at any moment, leaves the previous checkpoints intact.

    Args:
        folder: the checkpoints of one run.
        step: the number of updates so far; names the checkpoint.
        model: saved in `weights.safetensors`.
        training: tensors and plain values.
        facts: plain values for JSON.
        notes: text that stays with the weights when their file is copied; see `notes_of`.
        keep: how many checkpoints to keep.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    final, temporary = folder / f"step-{step:08d}", folder / f".writing-{step:08d}"
    for leftover in (*folder.glob(".writing-*"), *folder.glob(".deleting-*")):
        shutil.rmtree(leftover)
    try:
        temporary.mkdir()
        save_model(model, str(temporary / WEIGHTS), metadata=dict(notes or {}))
        torch.save(dict(training), temporary / TRAINING)
        digests = {name: _digest(temporary / name) for name in (WEIGHTS, TRAINING)}
        manifest = {"format": FORMAT, "step": step, "sha256": digests, "facts": dict(facts)}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for name in (WEIGHTS, TRAINING, MANIFEST):
            sync(temporary / name)
        sync(temporary)
        replaced = _set_aside(final)  # one of the same step
        os.rename(temporary, final)
        sync(folder)
        if replaced is not None:
            shutil.rmtree(replaced)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        last = latest(folder, quiet=True)
        raise CheckpointError(
            f"{final} cannot be written: {error}. Remove the cause (is the disk full?) and resume the run from "
            + (last.folder.name if last else "its beginning")
        ) from error
    _prune(folder, final, keep)
    return Checkpoint(final, step, dict(facts))


def latest(folder: Path | str, *, quiet: bool = False) -> Checkpoint | None:
    """The newest undamaged checkpoint in `folder`; None if there is no checkpoint.

    A damaged one is skipped with a `CheckpointWarning`, unless `quiet`. If all are damaged, that is an error, since
    the run must not silently start again.
    """
    problems = []
    _restore_replaced(Path(folder))
    for candidate in _newest_first(Path(folder)):
        try:
            found = _verified(candidate)
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{candidate.name}: {error}")
            continue
        if problems and not quiet:
            text = f"damaged, so {found.folder.name} is used instead: {'; '.join(problems)}"
            warnings.warn(text, CheckpointWarning, stacklevel=2)
        return found
    if problems and not quiet:
        raise CheckpointError(
            f"every checkpoint in {folder} is damaged: {'; '.join(problems)}. Restore one from a copy, or delete them "
            "to start again"
        )
    return None


def load_weights(model: nn.Module, file: Path | str) -> None:
    """Load the weights of a safetensors file into `model`."""
    try:
        load_model(model, str(file))
    except SafetensorError as error:
        raise CheckpointError(
            f"{file} is damaged ({error}); restore it from a copy, or train the network again"
        ) from error
    except RuntimeError as error:
        reason = textwrap.shorten(str(error), 200, placeholder=" ...")
        raise CheckpointError(
            f"{file} does not fit the network: {reason} Build the network as for the run; a run of your own network is "
            "loaded from Python, by load_trained(folder, net=...)"
        ) from error


def notes_of(file: Path | str) -> dict[str, str]:
    """The notes in the header of a safetensors file."""
    with safe_open(str(file), "pt") as opened:
        return opened.metadata() or {}


def sync(path: Path) -> None:
    """Wait until the contents of a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _verified(folder: Path) -> Checkpoint:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if manifest["format"] != FORMAT:
        raise ArgumentError(f"format {manifest['format']}, this version reads {FORMAT}")
    for name, digest in manifest["sha256"].items():
        if _digest(folder / name) != digest:
            raise ArgumentError(f"{name} is not what was written (its checksum differs)")
    return Checkpoint(folder, int(manifest["step"]), manifest["facts"])


def _whole(folder: Path) -> bool:
    try:
        _verified(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"), reverse=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _prune(folder: Path, written: Path, keep: int) -> None:
    """Delete all but the newest `keep` and the one just written.

    Damaged checkpoints of later steps, from which the run could not resume, do not count.
    """
    there = _newest_first(folder)
    later = there[: there.index(written)]
    good = [one for one in there if one not in later or _whole(one)]
    for old in there:
        if old != written and old not in good[:keep]:
            doomed = _set_aside(old)  # a kill must not leave half a checkpoint under its name
            if doomed is not None:
                shutil.rmtree(doomed)


def _set_aside(folder: Path) -> Path | None:
    """Rename a checkpoint, if it exists, to a name that will be deleted."""
    if not folder.exists():
        return None
    doomed = folder.with_name(f".deleting-{folder.name}")
    os.rename(folder, doomed)
    return doomed


def _restore_replaced(folder: Path) -> None:
    """Restore the name of a whole checkpoint if a kill came between the two renames that replace it."""
    if _newest_first(folder):
        return
    for aside in sorted(folder.glob(".deleting-step-*"), reverse=True):
        if _whole(aside):
            os.rename(aside, folder / aside.name.removeprefix(".deleting-"))
            return
