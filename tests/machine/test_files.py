import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from advbnn.errors import FileError, RunError
from advbnn.machine.files import (
    append_text,
    locked_file,
    locked_folder,
    read_json,
    read_text,
    write_atomically,
    written_whole,
)


def test_replaces_the_file_and_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    path.with_name("usual").touch()
    assert path.stat().st_mode == path.with_name("usual").stat().st_mode  # others may read it
    path.with_name("usual").unlink()
    assert os.listdir(path.parent) == ["file.json"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    target, link = tmp_path / "there" / "file", tmp_path / "link"
    link.symlink_to(target)
    for content in (b"one", b"two"):
        write_atomically(link, content)
        assert link.is_symlink() and target.read_bytes() == content
    link.unlink()
    link.symlink_to(link)  # a loop has no target
    write_atomically(link, b"three")
    assert link.read_bytes() == b"three"


def test_errors_name_the_path_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    with pytest.raises(FileError, match=r"^folder cannot be written"):
        write_atomically(Path("folder"), b"")


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, b"old")
    with pytest.raises(KeyboardInterrupt), written_whole(path) as file:
        file.write(b"half of it")
        raise KeyboardInterrupt

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(FileError, match=r"file\.json .*No space left.*room"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.json"]


def test_errors_of_the_file_system_name_the_path_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "latin1").write_bytes(b"\xe9")
    append_text(tmp_path / "text", "no ")
    append_text(tmp_path / "text", "json")
    assert read_text(tmp_path / "text") == "no json"
    for act, message in (
        (lambda: read_text(tmp_path / "nothing"), "nothing cannot be read: No such file.*check the path"),
        (lambda: read_text(tmp_path / "latin1"), "latin1 cannot be read: it is not UTF-8"),
        (lambda: read_json(tmp_path / "text"), "text is damaged.*JSON.*restore"),
        (lambda: append_text(tmp_path, "x"), "cannot be written"),
        (lambda: write_atomically(tmp_path / "text" / "x", b""), "x cannot be written: .*choose another place"),
    ):
        with pytest.raises(FileError, match=message):
            act()


def in_process(program: str, *arguments: object) -> "subprocess.Popen[str]":
    """A Python process with pipes; no torch is imported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_folder_locked_by_another_process_is_refused_until_that_ends(tmp_path: Path) -> None:
    program = """import pathlib, sys
from advbnn.machine.files import locked_folder
with locked_folder(pathlib.Path(sys.argv[1])):
    print("locked", flush=True)
    input()"""
    folder = tmp_path / "new"
    for end in (lambda other: other.communicate("go on\n"), lambda other: (other.kill(), other.communicate())):
        other = in_process(program, folder)
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        with pytest.raises(RunError, match=rf"new .*{other.pid}.*wait"), locked_folder(folder):
            pass
        with locked_folder(tmp_path / "other"):
            pass
        end(other)
        with locked_folder(folder):
            pass
        assert os.listdir(folder) == []


def test_processes_wait_for_each_other_and_lose_nothing(tmp_path: Path) -> None:
    """Three processes add one to a number in a file, each a hundred times; a fourth is killed while it has the lock."""
    program = """import os, pathlib, sys
from advbnn.machine.files import locked_file, write_atomically
path = pathlib.Path(sys.argv[1])
for _ in range(100):
    with locked_file(path):
        write_atomically(path, str(int(path.read_text()) + 1).encode())
with locked_file(path):
    if sys.argv[2] == "3":
        path.with_name(".number.12345").touch()  # half a file
        os.kill(os.getpid(), 9)"""
    path = tmp_path / "number"
    path.write_text("0")
    others = [in_process(program, path, number) for number in range(4)]
    for other in others:
        other.communicate(timeout=60)
    with locked_file(path):
        assert path.read_text() == "400"
    assert os.listdir(tmp_path) == ["number"]


def test_locks_of_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for the module that Windows has, which is free at the second attempt."""
    attempts: list[int] = []

    def locking(descriptor: int, mode: int, count: int) -> None:
        attempts.append(descriptor)
        if len(attempts) % 2:
            raise PermissionError

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    monkeypatch.setattr(sys, "platform", "win32")
    with locked_file(tmp_path / "file"):
        assert len(attempts) == 2
    with pytest.raises(RunError, match="another process"), locked_folder(tmp_path):
        pass
    with locked_folder(tmp_path):
        assert len(attempts) == 4
