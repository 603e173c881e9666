"""Decoded images kept on disk, so that a large folder is decoded once, and checked whenever they are loaded."""

import json
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from advbnn.errors import FileError, data_error
from advbnn.machine.files import file_digest, write_atomically, written_whole

log = logging.getLogger(__name__)


def cached(store: Path, identity: dict[str, object], build: Callable[[], np.ndarray]) -> np.ndarray:
    """The array that `build` returns, from `store` if that is undamaged and has the same identity.

    A `.json` record beside `store` (an `.npy` file) has the identity and the SHA-256 of the file. If the record
    differs, the file does not match it, or one of them is missing, the array is built again, and the log says why.
    Both files are written whole, the record last.
    """
    record = store.with_suffix(".json")
    if store.exists() or record.exists():
        if (problem := _problem(store, record, identity)) is None:
            return np.load(store, allow_pickle=False)  # type: ignore[no-any-return]
        log.warning("%s: %s; building it again", store, problem)
    try:  # an error now rather than after the images have been decoded
        store.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store.parent):
            pass
    except OSError as error:
        problem = f"the cache cannot be written here ({error})"
        raise data_error(store.parent, problem, "pass cache=another folder") from error
    array = build()
    try:
        with written_whole(store) as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            digest = file_digest(Path(file.name))  # of this file: another process may write `store`, too
        write_atomically(record, json.dumps({**identity, "sha256": digest}, indent=2).encode())
    except FileError as error:
        log.warning("%s; the images will be decoded again next time", error)
    return array


def _problem(store: Path, record: Path, identity: dict[str, object]) -> str | None:
    try:
        known = json.loads(record.read_text())
        expected = known.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError):
        return f"its record {record.name} is missing or damaged"
    if known != identity:
        return "it was made from other images or with other settings"
    if not store.exists() or file_digest(store) != expected:
        return "it is damaged (its SHA-256 is not the recorded one)"
    return None
