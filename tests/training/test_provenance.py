"""Where a run comes from, found without running what a repository's configuration names."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from advbnn.training.provenance import other_arithmetic, provenance

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


def git(folder: Path, *arguments: str) -> str:
    author = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=trunk"]
    command = ["git", "-C", str(folder), *author, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "deep" / "inside").mkdir(parents=True)
    git(folder, "init")
    (folder / "file").write_text("content")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def commit_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    monkeypatch.chdir(folder)
    found = provenance(0, torch.device("cpu"))["git"]
    return None if found is None else str(found["commit"])


def test_the_commit_is_that_of_git(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = git(repository, "rev-parse", "HEAD")
    assert commit_at(repository, monkeypatch) == commit_at(repository / "deep" / "inside", monkeypatch) == expected
    git(repository, "worktree", "add", "-b", "other", str(tmp_path / "worktree"))
    assert commit_at(tmp_path / "worktree", monkeypatch) == expected
    git(tmp_path / "worktree", "commit", "--allow-empty", "-m", "second")
    second = git(tmp_path / "worktree", "rev-parse", "HEAD")
    git(repository, "pack-refs", "--all")
    assert commit_at(tmp_path / "worktree", monkeypatch) == second != commit_at(repository, monkeypatch) == expected
    git(repository, "checkout", "--detach")
    assert commit_at(repository, monkeypatch) == expected
    (repository / ".git" / "HEAD").write_bytes(b"\xff")
    assert commit_at(repository, monkeypatch) is None
    assert commit_at(Path(tmp_path.anchor), monkeypatch) is None


def test_the_configuration_of_a_repository_runs_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = f"touch {tmp_path / 'owned'}; true"
    for key in ("core.fsmonitor", "filter.f.clean", "core.pager", "core.editor"):
        git(repository, "config", key, planted)
    (repository / ".gitattributes").write_text("* filter=f")
    assert commit_at(repository, monkeypatch) is not None
    assert not (tmp_path / "owned").exists()
    git(repository, "status")
    assert (tmp_path / "owned").exists()  # git itself would have run it


def test_another_order_of_additions_is_noted() -> None:
    here = provenance(0, torch.device("cpu"))
    assert other_arithmetic(here, here) is None and other_arithmetic({}, here) is None
    note = other_arithmetic({**here, "cpu_capability": "SSE2"}, here)
    assert note is not None and f"cpu_capability SSE2 before, {here['cpu_capability']} now" in note
    gpu = {**here, "device": "H200"}
    assert other_arithmetic({**gpu, "threads": 99}, gpu) is None and other_arithmetic(here, gpu) is not None
