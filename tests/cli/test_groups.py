"""A network of one's own from the command line: `--model file.py:build`, started from an empty folder."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import save_model

from advbnn.evaluation.records import Records
from advbnn.models.from_file import load_model
from trained_nets import digits

Command = Callable[..., str]
FILE = """
from torch import nn

def build():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.1)).eval()
    net[2].train()
    return net
"""
OWN = ["--model", "net.py:build", "--data", "digits", "--device", "cpu"]
FEW = ["--limit", 100, "--samples", 2, "--seeds", 1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a file with a network, its weights, and nothing else."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(FILE)
    save_model(load_model("net.py:build"), "w.safetensors")
    return tmp_path


def test_evaluate_and_curve(folder: Path, advbnn: Command) -> None:
    advbnn("evaluate", *OWN, "--weights", "w.safetensors", "--attack", "clean", "--attack", "fgsm", "--eps", 0.1, *FEW)
    records = Records.load("records.json")
    assert [(record.name, record.model.label) for record in records] == [("clean", "net-w"), ("fgsm", "net-w")]
    assert "weights sha256:" in records[0].model.source
    advbnn("curve", *OWN, "radius", "--at", 0, "--at", 0.1, "--steps", 1, *FEW)
    assert len(Records.load("records.json").where(curve="radius", label="net")) == 2
    Path("net.py").write_text(FILE + "\n# another network")
    again = ["evaluate", *OWN, "--weights", "w.safetensors", "--attack", "clean", *FEW]
    assert "model.source was" in advbnn(*again, status=1)  # a change of the file makes another model


def test_audit(folder: Path, advbnn: Command, tiny_audits: None) -> None:
    assert "worst" in advbnn("audit", *OWN, "--level", "quick", "--eps", 0.1, "--limit", 100, "--samples", 2)
    assert "give --eps" in advbnn("audit", *OWN, "--level", "quick", status=1)  # no radius of training


def test_predict(folder: Path, advbnn: Command) -> None:
    Image.fromarray(digits().images[0, 0].numpy()).save("digit.png")
    assert "digit.png" in advbnn("predict", *OWN, "digit.png", "--samples", 2)
    assert "IMAGES is missing" in advbnn("predict", *OWN, status=2)


def test_transfer(folder: Path, runs: Path, advbnn: Command) -> None:
    few = ["--eps", 0.1, "--steps", 1, *FEW]
    shown = advbnn("transfer", runs / "plain", *OWN, "--model", "net.py:build", *few, status=1)
    assert "must differ" in shown
    assert "from net" in advbnn("transfer", runs / "plain", *OWN, *few)
    assert len(Records.load("transfer.json").where(kind="transfer")) == 4


OTHERS: dict[str, list[object]] = {
    "evaluate": [],
    "audit": ["--eps", 0.1],
    "curve": ["radius"],
    "compare": ["--model", "net.py:build"],
    "transfer": ["--model", "net.py:build", "--eps", 0.1],
    "uncertainty": ["--eps", 0.1],
    "predict": ["net.py"],
    "play": ["--no-browser"],
    "leaderboard measure": ["--eps", 0.1],
}


@pytest.mark.parametrize("command", OTHERS)
def test_the_files_of_a_data_set_are_found_by_the_option_that_is_advised(
    command: str, folder: Path, advbnn: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("advbnn.play.page.check_gradio", lambda: None)
    monkeypatch.delenv("ADVBNN_DATA", raising=False)
    words = [*command.split(), *(["rse"] if "measure" in command else [])]
    given = [*words, "--model", "net.py:build", "--data", "cifar10", "--device", "cpu", *OTHERS[command]]
    missing = advbnn(*given, status=1)
    assert "--root FOLDER" in missing and "ADVBNN_DATA" in missing
    Path("empty").mkdir()
    found = advbnn(*given, "--root", "empty", status=1)
    assert "empty" in found and "root is needed" not in found


def test_the_files_of_a_run_may_have_moved(
    runs: Path, tmp_path: Path, advbnn: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ADVBNN_DATA", raising=False)
    config = runs / "plain" / "config.toml"
    config.write_text(config.read_text().replace('data = "digits"', 'data = "cifar10"\nroot = "gone"'))
    assert "gone" in advbnn("evaluate", runs / "plain", "--device", "cpu", status=1)
    assert str(tmp_path) in advbnn("evaluate", runs / "plain", "--root", tmp_path, "--device", "cpu", status=1)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "run folder, or --model"),
        (["RUN", *OWN], 2, "run folder, or --model"),
        (["--model", "net.py:build"], 2, "--model needs --data"),
        (["RUN", "--weights", "w.safetensors"], 2, "--weights goes with --model"),
        ([*OWN, "--last"], 2, "--last is for runs"),
        (["--model", "net.py:bild", "--data", "digits"], 1, "did you mean 'build'"),
        (["--model", "none.py:build", "--data", "digits"], 1, "no file none.py"),
        (["--model", "net.py:build", "--data", "digit"], 1, "did you mean 'digits'"),
        ([*OWN, "--weights", "net.py"], 1, "not a safetensors file"),
        (["--model", "net.py:build", "--data", ".", "--root", "."], 1, "--root is for data sets with a name"),
    ],
)
def test_refusals(folder: Path, advbnn: Command, arguments: list[str], status: int, message: str) -> None:
    assert message in advbnn("evaluate", *arguments, "--attack", "clean", "--device", "cpu", status=status)
