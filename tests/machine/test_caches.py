"""Folders for bytecode and compiled code: the user's cache folder, unless the environment names others."""

import os
import sys
from pathlib import Path

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from advbnn.machine.caches import keep_bytecode, keep_compiled_code

COMPILER, BYTECODE = "TORCHINDUCTOR_CACHE_DIR", "PYTHONPYCACHEPREFIX"


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(COMPILER, "")  # restores it afterwards
    monkeypatch.delenv(COMPILER)
    monkeypatch.setenv(BYTECODE, "")
    monkeypatch.delenv(BYTECODE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package without bytecode in a folder that may not be written; root may write everywhere."""
    place = tmp_path / "packages" / "package_without_bytecode"
    place.mkdir(parents=True)
    (place / "__init__.py").touch()
    monkeypatch.syspath_prepend(place.parent)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != place and may(path, mode))
    return place


def test_compiled_code_is_kept_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_compiled_code()
    assert (
        os.environ[COMPILER] == str(tmp_path / "cache" / "advbnn" / "compiled") and Path(os.environ[COMPILER]).is_dir()
    )
    monkeypatch.delenv(COMPILER)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    keep_compiled_code()
    assert os.environ[COMPILER] == str(tmp_path / "home" / ".cache" / "advbnn" / "compiled")


def test_compiled_code_is_kept_also_after_torch_has_named_its_temporary_folder(tmp_path: Path) -> None:
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # loads the compiler
    os.environ.pop(COMPILER, None)
    assert cache_dir() == os.environ[COMPILER]  # as torch does when the compiler is loaded
    keep_compiled_code()
    assert cache_dir() == str(tmp_path / "cache" / "advbnn" / "compiled")


def test_a_chosen_folder_stays_and_an_impossible_one_is_left_to_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    keep_compiled_code()
    assert COMPILER not in os.environ
    monkeypatch.setenv(COMPILER, "/chosen")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keep_compiled_code()
    assert os.environ[COMPILER] == "/chosen" and not (tmp_path / "cache").exists()


def test_bytecode_of_a_read_only_package_is_kept(tmp_path: Path, read_only: Path) -> None:
    keep_bytecode(read_only.name)
    assert sys.pycache_prefix == os.environ[BYTECODE] == str(tmp_path / "cache" / "advbnn" / "bytecode")


def test_bytecode_stays_where_it_is_or_may_be_written(
    read_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_bytecode("no_such_package")
    keep_bytecode("json")  # has bytecode, or may be written
    with monkeypatch.context() as without:
        without.setattr(sys, "dont_write_bytecode", True)
        keep_bytecode(read_only.name)
    (read_only / "__pycache__").mkdir()
    keep_bytecode(read_only.name)
    assert sys.pycache_prefix is None and BYTECODE not in os.environ and not (tmp_path / "cache").exists()
    monkeypatch.setattr(sys, "pycache_prefix", "/chosen")
    keep_bytecode(read_only.name)
    assert sys.pycache_prefix == "/chosen"
