"""Files named by users: written whole or not at all, and errors of the file system in the words of the library."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from advbnn.errors import ArgumentError, FileError

_WRITABLE = "make room, change the permissions, or choose another place"


@contextmanager
def explain_file_errors(path: Path | str, problem: str, remedy: str) -> Iterator[None]:
    """Within the block, an error of the file system becomes a `FileError`: "PATH cannot be read: ...; REMEDY"."""
    try:
        yield
    except FileError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FileError(f"{path} {problem}: {reason or error}; {remedy}") from error


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    with explain_file_errors(path, "cannot be read", "check the path and its permissions"):
        return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise FileError(f"{path} is not JSON: {error}; restore the file or remove it") from error


def append_text(path: Path, text: str) -> None:
    """Appends to a UTF-8 file, which is created if it does not exist."""
    with explain_file_errors(path, "cannot be written", _WRITABLE), path.open("a", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which becomes `path` at the end of the block.

    A reader finds the old file or the new one, complete, whenever the process is interrupted. If the block raises,
    nothing of the new file is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with explain_file_errors(path, "cannot be written", _WRITABLE):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_atomically(path: Path, content: bytes) -> None:
    """Writes `content` to `path`, whole or not at all."""
    with written_whole(path) as file:
        file.write(content)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Locks a folder for this process. The system releases the lock when the process ends, even if it is killed."""
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        yield
        return
    with explain_file_errors(folder, "cannot be written", _WRITABLE):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "wait until it ends, or choose another folder"
            raise ArgumentError(f"another process is working in {folder}: {remedy}") from None
        except OSError:
            pass  # some network file systems have no locks either
        yield
