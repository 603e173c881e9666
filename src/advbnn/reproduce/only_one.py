"""One command at a time in a folder: two would train the same networks into the same files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Holds a folder for this process. The system lets go of it when the process ends, however that comes about.

    Raises:
        ValueError: another process holds it.
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
            raise ValueError(
                f"another `advbnn reproduce` is at work in {folder}: wait for its end, or give --out another folder"
            ) from None
        except OSError:
            pass  # nor have some network file systems
        yield
