import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from advbnn.data import DataError, fetch
from advbnn.data.download import download

CONTENT = bytes(range(256)) * 12_000  # 3 MB: more than one block
CHECKSUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@dataclass
class Site:
    """What the server does, and the Range headers that it received."""

    url: str = ""
    ranges: bool = True
    announce_length: bool = True
    drops: list[int] = field(default_factory=list)  # bytes to send in each of the next answers before hanging up
    statuses: list[int] = field(default_factory=list)  # refusals to give first
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.asked.append(asked)
            if state.statuses:
                return self.send_error(state.statuses.pop(0))
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and state.ranges else 0
            if start >= len(CONTENT):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            body = CONTENT[start:]
            self.send_response(206 if asked and state.ranges else 200)
            if asked and state.ranges:
                self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
            if state.announce_length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.drops.pop(0)] if state.drops else body)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *args: object) -> None:
            """A client that hangs up is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/set.tar.gz"
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield state
        server.shutdown()


@pytest.fixture
def to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "folder" / "set.tar.gz"


def get(site: Site, to: Path, kept: bytes | None = None, retries: int = 3, checksum: str = CHECKSUM) -> None:
    """Downloads the file, with `kept` left from an earlier attempt, and checks it."""
    if kept is not None:
        to.parent.mkdir(exist_ok=True)
        to.with_name("set.tar.gz.part").write_bytes(kept)
    reports: list[int] = []
    download(site.url, to, checksum, lambda done, total: reports.append(done), retries=retries, pause=0.001)
    assert not reports or reports[-1] == len(CONTENT)
    assert to.read_bytes() == CONTENT
    assert os.listdir(to.parent) == [to.name]


def test_a_wrong_checksum_leaves_nothing_and_an_existing_file_is_verified_and_kept(site: Site, to: Path) -> None:
    with pytest.raises(DataError, match=r"http://127.*SHA256.*kept"):
        get(site, to, checksum="sha256:" + "0" * 64)
    assert os.listdir(to.parent) == []
    get(site, to)
    get(site, to)
    assert len(site.asked) == 2
    to.write_bytes(b"something of the user's")
    with pytest.raises(DataError, match=r"set\.tar\.gz: .*SHA256 .*remove"):
        get(site, to)
    assert to.read_bytes() == b"something of the user's"


def test_continues_when_the_connection_drops(site: Site, to: Path) -> None:
    site.drops = [1_500_000, 700_000, 5]
    get(site, to, retries=1)  # each attempt gains, so one retry at a time is enough
    assert site.asked == [None, "bytes=1500000-", "bytes=2200000-", "bytes=2200005-"]


def test_starts_again_if_the_server_cannot_resume(site: Site, to: Path) -> None:
    site.ranges, site.drops = False, [1_500_000]
    get(site, to)
    assert site.asked == [None, "bytes=1500000-"]


@pytest.mark.parametrize("kept", [b"", b"of another file", CONTENT, CONTENT + b"too long"], ids=len)
def test_the_file_is_right_whatever_part_was_kept(site: Site, to: Path, kept: bytes) -> None:
    site.announce_length = False
    get(site, to, kept)


def test_gives_up_on_a_dead_connection_and_keeps_what_arrived(site: Site, to: Path) -> None:
    site.drops = [1000, 0, 0, 0]
    with pytest.raises(DataError, match=r"1000 of 3072000 .*3 attempts.*again"):
        get(site, to, retries=2)
    site.drops = []
    get(site, to)
    assert site.asked[-1] == "bytes=1000-"


def test_retries_an_overloaded_server_but_not_a_refusal(site: Site, to: Path) -> None:
    site.statuses = [503, 429]
    get(site, to)
    site.statuses, site.asked = [404], []
    with pytest.raises(DataError, match="404.*address"):
        get(site, to.with_name("other"))
    assert len(site.asked) == 1
    with pytest.raises(DataError, match=r"refused.*\(2 attempts\)"):
        get(Site("http://127.0.0.1:9/x"), to.with_name("third"), retries=1)


def test_fetch_takes_the_published_archive(site: Site, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advbnn.data.download.PUBLISHED", {"cifar10": (site.url, CHECKSUM)})
    assert fetch("cifar10", to.parent) == to and to.read_bytes() == CONTENT
    with pytest.raises(ValueError, match="'cifar10'"):
        fetch("cifar", to)


def test_two_downloads_of_one_file_wait_for_each_other(site: Site, to: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: download(site.url, to, CHECKSUM, lambda done, total: None), range(2)))
    assert found == [to, to] and to.read_bytes() == CONTENT
