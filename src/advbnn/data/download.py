"""Downloads that resume where they stopped, are verified, and have their final name only when complete."""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from advbnn.data import cifar10, stl10
from advbnn.data.archive import check_sum
from advbnn.display.progress import ProgressBar
from advbnn.errors import DataError, data_error, one_of
from advbnn.machine.files import explain_file_errors, locked_file

PUBLISHED = {
    "cifar10": (cifar10.ARCHIVE_URL, cifar10.ARCHIVES["cifar-10-binary.tar.gz"]),
    "stl10": (stl10.ARCHIVE_URL, stl10.ARCHIVE_CHECKSUM),
}
Report = Callable[[int, int | None], None]
_BLOCK = 1 << 20
_TIMEOUT = 30.0  # seconds without a response
_WORTH_RETRYING = {408, 425, 429, 500, 502, 503, 504}


def fetch(name: str, root: Path | str) -> Path:
    """Downloads the archive of "cifar10" or "stl10" into the folder `root`, where `load(name, root)` finds it.

    An archive that is already there is verified, not downloaded.
    """
    one_of("name", name, PUBLISHED)
    url, checksum = PUBLISHED[name]
    to = Path(root) / url.rsplit("/", 1)[1]
    with ProgressBar(to.name, "bytes") as bar:
        return download(url, to, checksum, bar.update)


def download(url: str, to: Path, checksum: str, report: Report, *, retries: int = 5, pause: float = 1.0) -> Path:
    """Downloads one file over HTTP; nothing is done if it exists with the right checksum, `algorithm:hexdigest`.

    The bytes are collected in `<to>.part`, which is kept if the download fails. The next attempt, in this call or a
    later one, continues at its end if the server supports that. `to` is created, complete and verified, in one step.
    Up to `retries` attempts in a row may fail without a new byte; the `pause` before a retry doubles each time.
    Processes that want the same file wait for the first of them.
    """
    if not to.exists():
        with explain_file_errors(to.parent, "cannot be created", "choose another folder"):
            to.parent.mkdir(parents=True, exist_ok=True)
        with locked_file(to):
            if not to.exists():
                return _download(url, to, checksum, report, retries, pause)
    check_sum(to, to, checksum, "remove it to download it again")
    return to


def _download(url: str, to: Path, checksum: str, report: Report, retries: int, pause: float) -> Path:
    part = to.with_name(f"{to.name}.part")
    kept = most = _size(part)
    failures = 0
    while True:
        try:
            _attempt(url, part, report)
            break
        except _AttemptError as problem:
            failures = 1 if _size(part) > most else failures + 1
            most = max(most, _size(part))
            if failures > retries:
                raise data_error(url, f"{problem} ({failures} attempts)", f"try again: {part} is kept") from problem
            time.sleep(pause * 2 ** (failures - 1))
    try:
        check_sum(url, part, checksum, "it was damaged, or the publisher has changed it: try again (nothing was kept)")
    except DataError:
        part.unlink()
        if not kept:
            raise
        # the bytes of an earlier call were of another file: start again
        return _download(url, to, checksum, report, retries, pause)
    part.replace(to)
    return to


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _AttemptError(Exception):
    """An attempt failed, and another one may succeed."""


def _attempt(url: str, part: Path, report: Report) -> None:
    """One request, beginning at the end of `part`."""
    begun = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={begun}-"} if begun else {})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # it was complete already, or is of another file, as its checksum will say
        problem = f"the server returned {error.code} {error.reason}"
        if error.code in _WORTH_RETRYING:
            raise _AttemptError(problem) from error
        raise data_error(url, problem, "check the address") from error
    except (OSError, http.client.HTTPException) as error:
        raise _AttemptError(f"cannot be reached ({getattr(error, 'reason', error)})") from error
    with response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        done = begun if resumed else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        report(done, total)
        with (
            explain_file_errors(part, "cannot be written", "make room and start again"),
            part.open("ab" if resumed else "wb") as file,
        ):
            for block in _blocks(response):
                file.write(block)
                done += len(block)
                report(done, total)
        if total is not None and done < total:
            raise _AttemptError(f"the connection closed after {done} of {total} bytes")


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while block := response.read(_BLOCK):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _AttemptError(f"the connection broke ({error})") from error
