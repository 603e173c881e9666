import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from advbnn.data import DataError, fetch
from advbnn.data.download import download
from advbnn.errors import FileError

CONTENT = bytes(range(256)) * 12_000  # 3 MB: more than one block
CHECKSUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@dataclass
class Site:
    """What the server does, and the Range headers that it has been asked with."""

    url: str = ""
    content: bytes = CONTENT
    ranges: bool = True
    wrong_start: bool = False
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
                self.send_error(state.statuses.pop(0))
                return
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and state.ranges else 0
            if start >= len(state.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(state.content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = state.content[start:]
            self.send_response(206 if asked and state.ranges else 200)
            if asked and state.ranges:
                first = start + 7 if state.wrong_start else start
                self.send_header("Content-Range", f"bytes {first}-{len(state.content) - 1}/{len(state.content)}")
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
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/set.tar.gz"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def get(site: Site, to: Path, checksum: str = CHECKSUM, retries: int = 3) -> Path:
    return download(site.url, to, checksum, retries=retries, pause=0.001, timeout=5)


def check_done(to: Path) -> None:
    assert to.read_bytes() == CONTENT
    assert os.listdir(to.parent) == [to.name]


def test_downloads_and_reports(site: Site, tmp_path: Path) -> None:
    reports: list[tuple[int, int | None]] = []
    to = tmp_path / "new" / "folder" / "set.tar.gz"
    download(site.url, to, CHECKSUM, report=lambda done, total: reports.append((done, total)))
    check_done(to)
    assert reports[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


def test_what_is_there_is_checked_and_kept(site: Site, tmp_path: Path) -> None:
    to = tmp_path / "set.tar.gz"
    to.write_bytes(CONTENT)
    get(site, to)
    assert site.asked == []
    to.write_bytes(b"something of the user's")
    with pytest.raises(DataError, match=r"set\.tar\.gz: its SHA256 is .*; remove it to download it again"):
        get(site, to)
    assert to.read_bytes() == b"something of the user's"


def test_resumes_an_earlier_download(site: Site, tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz.part").write_bytes(CONTENT[:1_000_000])
    get(site, tmp_path / "set.tar.gz")
    assert site.asked == ["bytes=1000000-"]
    check_done(tmp_path / "set.tar.gz")


def test_goes_on_when_the_connection_drops(site: Site, tmp_path: Path) -> None:
    site.drops = [1_500_000, 700_000, 5]
    get(site, tmp_path / "set.tar.gz", retries=1)  # each attempt gains, so one retry at a time is enough
    assert site.asked == [None, "bytes=1500000-", "bytes=2200000-", "bytes=2200005-"]
    check_done(tmp_path / "set.tar.gz")


def test_starts_again_where_the_server_cannot_resume(site: Site, tmp_path: Path) -> None:
    site.ranges = False
    site.drops = [1_500_000]
    get(site, tmp_path / "set.tar.gz")
    assert site.asked == [None, "bytes=1500000-"]
    check_done(tmp_path / "set.tar.gz")


def test_a_server_that_sends_another_part(site: Site, tmp_path: Path) -> None:
    site.wrong_start = True
    (tmp_path / "set.tar.gz.part").write_bytes(CONTENT[:10])
    get(site, tmp_path / "set.tar.gz")
    assert site.asked == ["bytes=10-", None]
    check_done(tmp_path / "set.tar.gz")


@pytest.mark.parametrize("left", [b"", b"of another file", CONTENT, CONTENT + b"too long"], ids=len)
def test_whatever_part_is_there_the_file_is_right(site: Site, tmp_path: Path, left: bytes) -> None:
    site.announce_length = False
    (tmp_path / "set.tar.gz.part").write_bytes(left)
    get(site, tmp_path / "set.tar.gz")
    check_done(tmp_path / "set.tar.gz")


def test_a_wrong_checksum_leaves_nothing(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"http://127.*its SHA256 is .*nothing was kept"):
        get(site, tmp_path / "set.tar.gz", checksum="sha256:" + "0" * 64)
    assert os.listdir(tmp_path) == []


def test_gives_up_on_a_dead_connection_and_keeps_what_arrived(site: Site, tmp_path: Path) -> None:
    site.drops = [1000, 0, 0, 0]
    with pytest.raises(
        DataError, match=r"closed after 1000 of 3072000 bytes \(3 attempts\); try again: .*part is kept"
    ):
        get(site, tmp_path / "set.tar.gz", retries=2)
    assert (tmp_path / "set.tar.gz.part").read_bytes() == CONTENT[:1000]
    site.drops = []
    get(site, tmp_path / "set.tar.gz")
    check_done(tmp_path / "set.tar.gz")


def test_an_overloaded_server_gets_further_requests_but_a_refusal_is_final(site: Site, tmp_path: Path) -> None:
    site.statuses = [503, 429]
    get(site, tmp_path / "set.tar.gz")
    check_done(tmp_path / "set.tar.gz")
    site.statuses, site.asked = [404], []
    with pytest.raises(DataError, match="404 Not Found; check the address"):
        get(site, tmp_path / "other.tar.gz")
    assert len(site.asked) == 1


def test_no_server(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be reached .*refused.*\(2 attempts\)"):
        download("http://127.0.0.1:9/x", tmp_path / "x", CHECKSUM, retries=1, pause=0.001)


def test_a_full_disk(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(FileError, match=r"part cannot be written: No space left.* make room"):
        get(site, tmp_path / "set.tar.gz")


def test_fetch_takes_the_published_archive(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advbnn.data.download.PUBLISHED", {"cifar10": (site.url, CHECKSUM)})
    assert fetch("cifar10", tmp_path) == tmp_path / "set.tar.gz"
    check_done(tmp_path / "set.tar.gz")
    with pytest.raises(ValueError, match="url must begin with http"):
        download("file:///etc/hostname", tmp_path / "x", CHECKSUM)
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        fetch("cifar", tmp_path)
