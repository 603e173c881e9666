import errno
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import nn

from advbnn.bayes.mean_field import bayesianize
from advbnn.bayes.modes import Modes
from advbnn.errors import CheckpointError, FileError
from advbnn.training import checkpoint
from advbnn.training.checkpoint import CheckpointWarning, latest, load_weights, save
from zoo import Tied


def net(value: float = 1.0) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


def write(folder: Path, step: int) -> checkpoint.Checkpoint:
    return save(folder, step=step, model=net(step), training={"t": torch.tensor(step)}, facts={"n": step})


def weight(found: checkpoint.Checkpoint | None) -> float:
    assert found is not None
    model = net(0)
    found.load_weights(model)
    return next(model.parameters()).flatten()[0].item()


@pytest.mark.parametrize("make", [net, Tied, lambda: bayesianize(net())], ids=["plain", "tied", "bayesian"])
def test_round_trip(tmp_path: Path, make: Any) -> None:
    model, other = make(), make()
    optimizer = torch.optim.Adam(model.parameters())
    sum(p.square().sum() for p in model.parameters()).backward()
    optimizer.step()
    save(tmp_path, step=7, model=model, training={"optimizer": optimizer.state_dict()}, facts={"epoch": 2})
    found = latest(tmp_path)
    assert found is not None and found.step == 7 and found.facts == {"epoch": 2}
    found.load_weights(other)
    for (name, tensor), loaded in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(tensor, loaded), name
    fresh = torch.optim.Adam(other.parameters())
    fresh.load_state_dict(found.training_state()["optimizer"])
    first = next(iter(optimizer.state_dict()["state"].values()))
    assert torch.equal(fresh.state_dict()["state"][0]["exp_avg"], first["exp_avg"])


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    assert latest(tmp_path) is None and latest(tmp_path / "none") is None
    for step in (1, 2, 30, 4):
        write(tmp_path, step)
    assert sorted(os.listdir(tmp_path)) == ["step-00000004", "step-00000030"]
    assert weight(latest(tmp_path)) == 30


def test_damaged_ones_of_later_steps_do_not_push_out_good_ones(tmp_path: Path) -> None:
    for step in (200, 300):
        write(tmp_path, step)
        (tmp_path / f"step-00000{step}" / "training.pt").write_bytes(b"")
    write(tmp_path, 100)
    write(tmp_path, 150)
    assert sorted(os.listdir(tmp_path)) == ["step-00000100", "step-00000150"]


def test_a_kill_while_a_step_is_replaced_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 5)
    rename = os.rename

    def killed(old: Path, new: Path) -> None:
        if Path(new).name == "step-00000005":
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, step=5, model=net(9), training={}, facts={})
    monkeypatch.undo()
    assert weight(latest(tmp_path)) == 5
    save(tmp_path, step=5, model=net(9), training={}, facts={})
    assert weight(latest(tmp_path)) == 9


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("weights.safetensors", flipped),
        ("training.pt", lambda content: content[:-9]),
        ("training.pt", None),
        ("manifest.json", lambda content: content.replace(b'"format": 2', b'"format": 1')),
        ("manifest.json", lambda content: content.replace(b'"step": 2', b'"step": "two"')),
        ("manifest.json", lambda content: content.replace(b'"n": 2', b'"n": 3')),
        ("manifest.json", lambda content: content.replace(b'"sha256": {', b'"sha256": [{').replace(b"},", b"}],")),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path: Path, part: str, damage: Any) -> None:
    write(tmp_path, 1)
    file = write(tmp_path, 2).folder / part
    content = file.read_bytes()
    file.unlink()
    if damage is not None:
        file.write_bytes(damage(content))
    with pytest.warns(CheckpointWarning, match="step-00000001.*step-00000002"):
        assert weight(latest(tmp_path)) == 1


def test_weights_have_the_permissions_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    checkpoint.save_weights(nn.Linear(2, 2), tmp_path / "model.safetensors", {}, lambda digest: None)
    files = (tmp_path / "model.safetensors", *write(tmp_path, 1).folder.iterdir())
    assert {file.stat().st_mode for file in files} == {(tmp_path / "other").stat().st_mode}


def test_a_damaged_file_of_weights_is_named(tmp_path: Path) -> None:
    for content in (b"", b"no weights", b"\xff" * 100):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"model\.safetensors .*restore"):
            checkpoint.load_weights(nn.Linear(2, 2), tmp_path / "model.safetensors")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "net.pt")
    with pytest.raises(CheckpointError, match=r"net\.pt .*no safetensors.*load_state_dict"):
        checkpoint.load_weights(nn.Linear(2, 2), tmp_path / "net.pt")
    for path, remedy in ((tmp_path, "a folder.*safetensors"), (tmp_path / "none.safetensors", "none.*path")):
        with pytest.raises(FileError, match=remedy):
            checkpoint.load_weights(nn.Linear(2, 2), path)


def test_if_all_are_damaged_that_is_an_error(tmp_path: Path) -> None:
    for step in (1, 2):
        (write(tmp_path, step).folder / "training.pt").write_bytes(b"?")
    with pytest.raises(CheckpointError, match="every checkpoint.*checksum differs.*delete them"):
        latest(tmp_path)


@pytest.mark.parametrize("place", ["save_model", "torch.save", "write_text", "fsync", "rename"])
@pytest.mark.parametrize(
    "death",
    [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("No space left"), SystemExit()],
    ids=["full", "full for safetensors", "killed"],
)
def test_the_last_good_one_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, death: BaseException
) -> None:
    """A full disk is an error with a remedy; the end of the process, at any moment, leaves the last checkpoint."""
    write(tmp_path, 1)

    def die(*args: object, **kwargs: object) -> None:
        raise death

    owner: Any = {"save_model": checkpoint, "torch.save": torch, "write_text": Path}.get(place, os)
    monkeypatch.setattr(owner, place.rpartition(".")[2], die)
    if not isinstance(death, SystemExit):
        with pytest.raises(CheckpointError, match=r"No space left.*disk full.*resume"):
            write(tmp_path, 2)
        assert os.listdir(tmp_path) == ["step-00000001"]
    else:
        with pytest.raises(SystemExit):
            write(tmp_path, 2)
    monkeypatch.undo()
    assert weight(latest(tmp_path)) == 1
    write(tmp_path, 3)
    assert weight(latest(tmp_path)) == 3
    assert sorted(os.listdir(tmp_path)) == ["step-00000001", "step-00000003"]


def test_half_a_deletion_is_not_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        write(tmp_path, step)

    def die(folder: Path) -> None:
        (folder / "training.pt").unlink()
        raise SystemExit

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(SystemExit):
        write(tmp_path, 3)
    monkeypatch.undo()
    (tmp_path / "step-00000003").rename(tmp_path / "gone")  # even without the newest, the rest is sound
    assert weight(latest(tmp_path)) == 2


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    class Malice:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "owned"),))

    found = write(tmp_path, 1)
    torch.save({"t": Malice()}, found.folder / "training.pt")
    with pytest.raises(pickle.UnpicklingError):
        found.training_state()
    assert not (tmp_path / "owned").exists()


def test_weights_of_another_network(tmp_path: Path) -> None:
    found = write(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"load_trained\(folder, net=...\)") as refused:
        found.load_weights(nn.Sequential(*(nn.Linear(3, 2) for _ in range(30))))
    assert len(str(refused.value).removeprefix(str(found.folder))) < 500  # and not the names of all weights


def test_a_mixture_and_one_network_are_told_apart(tmp_path: Path) -> None:
    files = tmp_path / "one.safetensors", tmp_path / "mixture.safetensors"
    for model, file in zip((nn.Linear(3, 2), Modes([nn.Linear(3, 2)])), files, strict=True):
        save_model(model, file)
    with pytest.raises(CheckpointError, match=r"holds one network.*modes\.net\[0\]"):
        load_weights(Modes([nn.Linear(3, 2)]), files[0])
    with pytest.raises(CheckpointError, match=r"holds a mixture.*Modes\(\[net\]\)"):
        load_weights(nn.Linear(3, 2), files[1])
