"""Files named by users: written whole or not at all, locked while they change, and errors in the library's words."""

import csv
import hashlib
import io
import json
import os
import platform
import re
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from advbnn.errors import FileError, InUseError

LOCK = ".lock"
"""The file in a locked folder; it names the process that has locked it."""

_WRITABLE = "make room, change the permissions, or choose another place"


@contextmanager
def explain_file_errors(path: Path | str, problem: str, remedy: str) -> Iterator[None]:
    """Within the block, an error of the file system becomes a `FileError`: "PATH cannot be read: ...; REMEDY"."""
    try:
        yield
    except FileError:
        raise
    except UnicodeDecodeError as error:
        remedy = "restore it from a copy, or save it as UTF-8"
        raise FileError(f"{path} {problem}: it is not UTF-8 text; {remedy}") from error
    except OSError as error:
        raise FileError(f"{path} {problem}: {error.strerror or error}; {remedy}") from error


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    with explain_file_errors(path, "cannot be read", "check the path and its permissions"):
        return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise FileError(f"{path} is damaged, it is not JSON: {error}; restore it from a copy, or remove it") from error


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with explain_file_errors(path, "cannot be read", "check the path and its permissions"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_text(path: Path, text: str) -> None:
    """Appends to a UTF-8 file, which is created if it does not exist."""
    with explain_file_errors(path, "cannot be written", _WRITABLE), path.open("a", encoding="utf-8") as file:
        file.write(text)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same columns as comma-separated text with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which becomes `path` at the end of the block.

    A reader finds the old file or the new one, complete, whenever the process is interrupted. If the block raises,
    nothing of the new file is left.
    """
    target = Path(os.path.realpath(path))  # of a link, which stays one
    # by more than the process, whose number another machine or a thread may have as well
    temporary = target.with_name(f".{target.name}.{os.getpid()}{secrets.randbelow(10**9):09d}")
    with explain_file_errors(path, "cannot be written", _WRITABLE):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_atomically(path: Path, content: bytes) -> None:
    """Writes `content` to `path`, whole or not at all."""
    with written_whole(path) as file:
        file.write(content)


def leftovers(path: Path) -> list[Path]:
    """What processes that were killed while they wrote `path` have left beside it."""
    begun = re.compile(rf"\.{re.escape(path.name)}\.\d+")
    return [each for each in path.parent.iterdir() if begun.fullmatch(each.name)]


@contextmanager
def locked_folder(folder: Path, wait: bool = False) -> Iterator[None]:
    """Locks a folder for this process. If another process has locked it, an error, or with `wait` wait for it."""
    with _locked(folder / LOCK, folder, wait=wait):
        yield


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Locks a file that is read, changed and written again; waits for other processes that do the same."""
    with _locked(path.with_name(f".{path.name}{LOCK}"), path, wait=True):
        for leftover in leftovers(path):
            leftover.unlink(missing_ok=True)
        yield


@contextmanager
def _locked(lock: Path, what: Path, *, wait: bool) -> Iterator[None]:
    """Within the block this process has the lock. The system releases it when the process ends, even if killed."""
    while True:
        with explain_file_errors(what, "cannot be written", _WRITABLE):
            lock.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _take(descriptor, wait)
        except BlockingIOError:
            os.lseek(descriptor, 0, os.SEEK_SET)
            owner = os.read(descriptor, 200).decode(errors="replace") or "another process"
            os.close(descriptor)
            raise InUseError(f"{what} is in use by {owner}; wait until it ends, or choose another folder") from None
        if _is_at(descriptor, lock):
            break
        os.close(descriptor)  # its last owner has removed it
    try:
        with suppress(OSError):  # on a full disk the owner stays unnamed
            os.truncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file
            lock.unlink()  # while it is locked: a process that waits for it notices, and makes a new one
        os.close(descriptor)


def _take(descriptor: int, wait: bool) -> None:
    """Locks an open file. Without `wait`, BlockingIOError if another process has locked it."""
    if sys.platform == "win32":
        import msvcrt

        while True:
            try:
                os.lseek(descriptor, 1 << 20, os.SEEK_SET)  # beyond the text, which others may read
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:
                if not wait:
                    raise BlockingIOError from error
                time.sleep(0.05)
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # some network file systems have no locks


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
