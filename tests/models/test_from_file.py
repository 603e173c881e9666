"""A network from a Python file and a safetensors file, and everything that may be wrong with either."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from advbnn.evaluation.identity import ModelIdentity
from advbnn.models.from_file import load_model, source_of

NET = """
from dataclasses import dataclass
from torch import nn
import beside

@dataclass
class Settings:
    classes: int = 10

def build():
    net = nn.Sequential(nn.Flatten(), nn.Linear(beside.PIXELS, Settings().classes), nn.Dropout())
    net.eval()
    net[2].train()
    return net

def needs(argument):
    return build()

def wrong():
    return [1, 2]

def broken():
    return 1 / 0

number = 3
module = nn.Linear(2, 3)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("PIXELS = 64")
    (tmp_path / "nets.py").write_text(NET)
    return tmp_path / "nets.py"


def test_builds_the_network_as_the_file_says_with_the_weights_of_the_file(file: Path) -> None:
    path = list(sys.path)
    trained = load_model(f"{file}:build")
    assert [module.training for module in trained] == [False, False, True]  # dropout at test time
    save_model(trained, str(file.with_suffix(".safetensors")))
    again = load_model(f"{file}:build", file.with_suffix(".safetensors"))
    assert torch.equal(again[1].weight, trained[1].weight)
    assert isinstance(load_model(f"{file}:module"), nn.Linear)
    assert sys.path == path


def test_the_identity_holds_the_digests_of_both_files(file: Path) -> None:
    weights = file.with_suffix(".safetensors")
    one = load_model(f"{file}:build")
    save_model(one, str(weights))
    sources = [source_of(one), source_of(load_model(f"{file}:build")), source_of(load_model(f"{file}:build", weights))]
    assert sources[0] == sources[1] != sources[2] and "weights sha256:" in sources[2]
    assert ModelIdentity.of(one).source == sources[0]
    assert ModelIdentity.of(nn.Linear(1, 1)).source == ""
    file.write_text(NET + "\n# another file")
    assert source_of(load_model(f"{file}:build")) != sources[0]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("nets.py", ValueError, "FILE.py:FUNCTION"),
        ("nets:build", ValueError, "FILE.py:FUNCTION"),
        ("nowhere.py:build", OSError, "no file nowhere.py"),
        ("nets.py:bild", ValueError, "'bild'.*did you mean 'build'"),
        ("nets.py:number", TypeError, "'number' .*function, got int"),
        ("nets.py:needs", TypeError, "'needs' .*no arguments.*'argument'"),
        ("nets.py:wrong", TypeError, "'wrong' .*nn.Module.*list"),
        ("nets.py:broken", ValueError, "nets.py, line 23: ZeroDivisionError"),
        ("syntax.py:build", ValueError, "syntax.py, line 1: SyntaxError"),
        ("imports.py:build", ValueError, "imports.py, line 2: ModuleNotFoundError.*nothing_like_it"),
    ],
)
def test_refuses_files_without_a_network(
    file: Path, source: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    Path("syntax.py").write_text("def build(:")
    Path("imports.py").write_text("\nimport nothing_like_it")
    with pytest.raises(error, match=message):
        load_model(source)


def test_refuses_weights_that_do_not_fit(file: Path) -> None:
    weights = file.with_suffix(".safetensors")
    for tensors, message in (
        ({"1.bias": torch.zeros(10)}, "lack 1.weight"),
        ({"1.bias": torch.zeros(10), "1.weight": torch.zeros(10, 64), "2.more": torch.zeros(1)}, "have 2.more"),
        ({"1.bias": torch.zeros(10), "1.weight": torch.zeros(10, 63)}, "1.weight.*63"),
        ({"module.1.bias": torch.zeros(10), "module.1.weight": torch.zeros(10, 64)}, "remove the prefix 'module.'"),
    ):
        save_file(tensors, weights)
        with pytest.raises(ValueError, match=f"do not fit the model: .*{message}"):
            load_model(f"{file}:build", weights)
    weights.write_bytes(b"a pickle")
    with pytest.raises(ValueError, match="safetensors.*torch.load.*weights_only=True"):
        load_model(f"{file}:build", weights)
    with pytest.raises(OSError, match="no file"):
        load_model(f"{file}:build", file.with_name("none.safetensors"))
