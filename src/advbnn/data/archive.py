"""Published files, read from their folder or directly from the archive, and checked."""

import hashlib
import io
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path

from advbnn.errors import data_error


def locate(root: Path, candidates: Collection[str], remedy: str) -> Path:
    """The first candidate (a folder or an archive) in `root`, or `root` itself if it is one."""
    for place in (root, *(root / name for name in candidates)):
        if place.name in candidates and place.exists():
            return place
    problem = "has none of its files" if root.is_dir() else "there is no such folder"
    raise data_error(root, problem, f"{remedy}, or give the folder that contains {' or '.join(candidates)}")


def read_files(source: Path, names: Collection[str], remedy: str) -> dict[str, bytes]:
    """The contents of the named files of a folder, or of a `.tar.gz` archive in any of its folders."""
    try:
        if source.is_dir():
            found = {name: (source / name).read_bytes() for name in names if (source / name).is_file()}
        else:
            found = _read_archive(source, names)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise data_error(source, f"cannot be read to its end ({error})", remedy) from error
    missing = [name for name in names if name not in found]
    if missing:
        raise data_error(source, f"{', '.join(missing)} missing", remedy)
    return found


def check_sum(what: Path | str, content: bytes | Path, checksum: str, remedy: str) -> None:
    """Raises an error unless `content` (bytes, or a file) has the checksum, written `algorithm:hexdigest`."""
    algorithm, expected = checksum.split(":")
    got = digest(content, algorithm)
    if got != expected:
        raise data_error(what, f"its {algorithm.upper()} is {got}, the published file's is {expected}", remedy)


def digest(content: bytes | Path, algorithm: str) -> str:
    """The hex digest of bytes or of a file."""
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def _read_archive(archive: Path, names: Collection[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            name = Path(member.name).name
            if name in names and (content := tar.extractfile(member)):
                found[name] = content.read()
            if len(found) == len(names):
                break  # the rest of an archive may be gigabytes that are not needed
    return found
