"""Files that appear under their name only when they are complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from advbnn.errors import ArgumentError

LOCK = ".lock"


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which becomes `path` at the end of the block.

    Whoever reads it, or pulls the plug, finds the old file or the new one, whole. If the block raises, nothing of the
    new one is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
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
    """Holds a folder for this process. The system lets go of it when the process ends, however that comes about.

    Raises:
        ArgumentError: another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArgumentError(
                f"another `advbnn reproduce` is at work in {folder}: wait for its end, or give --out another folder"
            ) from None
        except OSError:
            pass  # nor have some network file systems
        yield
