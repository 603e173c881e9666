"""Downloads that resume where they stopped, are checked, and appear under their name only when complete."""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from advbnn.data import cifar10, stl10
from advbnn.data.archive import check_sum, digest
from advbnn.errors import ArgumentError, DataError, data_error, unknown
from advbnn.progress import Report, progress

PUBLISHED = {
    "cifar10": (cifar10.ARCHIVE_URL, cifar10.ARCHIVES["cifar-10-binary.tar.gz"]),
    "stl10": (stl10.ARCHIVE_URL, stl10.ARCHIVE_CHECKSUM),
}
_BLOCK = 1 << 20
_WORTH_RETRYING = {408, 425, 429, 500, 502, 503, 504}


def fetch(name: str, root: Path | str) -> Path:
    """Downloads a published dataset's archive into `root`, from where `load(name, root)` reads it.

    Args:
        name: "cifar10" or "stl10".
        root: the folder, made if need be. An archive that is already there is checked, not downloaded.
    """
    if name not in PUBLISHED:
        raise unknown("name", name, PUBLISHED)
    url, checksum = PUBLISHED[name]
    to = Path(root) / url.rsplit("/", 1)[1]
    with progress(to.name, "bytes") as report:
        return download(url, to, checksum, report=report)


def download(
    url: str,
    to: Path | str,
    checksum: str,
    *,
    retries: int = 5,
    timeout: float = 30.0,
    pause: float = 1.0,
    report: Report = lambda done, total, doing="": None,
) -> Path:
    """Downloads one file over HTTP.

    Bytes gather in `<to>.part`, which survives whatever happens; the next attempt, in this call or a later
    one, goes on from its end if the server can. `to` appears, complete and checked, in one step.

    Args:
        url: the address, http or https.
        to: the file to write; if it exists with the right checksum there is nothing to do.
        checksum: the published one, `algorithm:hexdigest`.
        retries: how many times in a row an attempt may fail without a byte gained.
        timeout: seconds without an answer after which an attempt has failed.
        pause: seconds before the first retry, doubled for each further one.
        report: told the bytes so far and in all.

    Raises:
        DataError: the server refuses, cannot be reached, or sends something else than the published file.
    """
    if not url.startswith(("http://", "https://")):
        raise ArgumentError(f"url must begin with http:// or https://, got {url!r}")
    to = Path(to)
    if to.exists():
        check_sum(to, to, checksum, "remove it to download it again")
        return to
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f"{to.name}.part")
    resumed = _size(part) > 0
    _gather(url, part, retries, timeout, pause, report)
    if resumed and digest(part, checksum.split(":")[0]) != checksum.split(":")[1]:
        part.unlink()  # what an earlier call left was of another file: once more from the start
        _gather(url, part, retries, timeout, pause, report)
    try:
        check_sum(
            url,
            part,
            checksum,
            "it was altered on the way, or the publisher has changed it: try again (nothing was kept)",
        )
    except DataError:
        part.unlink()
        raise
    part.replace(to)
    return to


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _gather(url: str, part: Path, retries: int, timeout: float, pause: float, report: Report) -> None:
    """Attempts until `part` holds as much as the server has."""
    failures, most = 0, _size(part)
    while True:
        try:
            _attempt(url, part, timeout, report)
            return
        except _AttemptError as problem:
            failures = 1 if _size(part) > most else failures + 1
            most = max(most, _size(part))
            if failures > retries:
                raise data_error(
                    url, f"{problem} ({failures} attempts)", f"try again: {part} keeps what has arrived"
                ) from problem.__cause__
            time.sleep(pause * 2 ** (failures - 1))


class _AttemptError(Exception):
    """An attempt failed in a way that another one may not."""


def _attempt(url: str, part: Path, timeout: float, report: Report) -> None:
    """One request from the end of `part` on."""
    begun = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={begun}-"} if begun else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if error.headers.get("Content-Range") == f"bytes */{begun}":
                return  # everything had arrived already
            part.unlink()
            raise _AttemptError("the server has less than was kept of an earlier download") from error
        if error.code in _WORTH_RETRYING:
            raise _AttemptError(f"the server answered {error.code} {error.reason}") from error
        raise data_error(url, f"the server answered {error.code} {error.reason}", "check the address") from error
    except (OSError, http.client.HTTPException) as error:
        raise _AttemptError(f"cannot be reached ({getattr(error, 'reason', error)})") from error
    with response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
            part.unlink()
            raise _AttemptError("the server sent another part than was asked for")
        done = begun if resumed else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        report(done, total)
        try:
            with part.open("ab" if resumed else "wb") as file:
                for block in _blocks(response):
                    file.write(block)
                    done += len(block)
                    report(done, total)
        except OSError as error:
            raise data_error(part, f"cannot be written ({error})", "make room and start again") from error
        if total is not None and done < total:
            raise _AttemptError(f"the connection closed after {done} of {total} bytes")


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while block := response.read(_BLOCK):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _AttemptError(f"the connection broke ({error})") from error
