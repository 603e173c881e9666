"""A folder is held by one command at a time, and given up when that ends."""

import os
import subprocess
import sys

import pytest

from advbnn.files import locked_folder

pytest.importorskip("fcntl")


def test_a_second_command_is_refused_while_the_first_is_at_work(tmp_path) -> None:
    folder = tmp_path / "new"
    refused = pytest.raises(ValueError, match="another `advbnn reproduce` is at work in .*new")
    with locked_folder(folder), refused, locked_folder(folder):
        pass
    with locked_folder(folder), locked_folder(tmp_path / "other"):
        pass


def test_a_killed_command_holds_nothing(tmp_path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from advbnn.files import locked_folder\n"
        "with locked_folder(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), 9)"
    )
    path = os.pathsep.join(filter(None, sys.path))
    ended = subprocess.run(
        [sys.executable, "-c", program, tmp_path], env={**os.environ, "PYTHONPATH": path}, timeout=60
    )
    assert ended.returncode == -9
    with locked_folder(tmp_path):
        assert (tmp_path / ".lock").exists()
