"""Files that appear under their name only when they are complete."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Writes `content` to `path`; whoever reads it, or pulls the plug, finds the old file or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
