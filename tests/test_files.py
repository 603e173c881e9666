import os
import subprocess
import sys
from pathlib import Path

import pytest

from advbnn.errors import FileError, RunError
from advbnn.files import append_text, locked_folder, read_json, read_text, write_atomically, written_whole


def test_replaces_the_file_and_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    path.with_name("usual").touch()
    assert path.stat().st_mode == path.with_name("usual").stat().st_mode  # others may read it
    path.with_name("usual").unlink()
    assert os.listdir(path.parent) == ["file.json"]


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


def test_a_locked_folder_is_refused_until_it_is_released(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    folder = tmp_path / "new"
    refused = pytest.raises(RunError, match=rf"new is in use by process {os.getpid()} .*wait")
    with locked_folder(folder), refused, locked_folder(folder):
        pass
    with locked_folder(folder), locked_folder(tmp_path / "other"):
        pass


def test_a_killed_process_releases_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    program = """import os, pathlib, sys
from advbnn.files import locked_folder
with locked_folder(pathlib.Path(sys.argv[1])):
    os.kill(os.getpid(), 9)"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run([sys.executable, "-c", program, tmp_path], env=environment, timeout=60)
    assert ended.returncode == -9
    with locked_folder(tmp_path):
        assert (tmp_path / ".lock").exists()
