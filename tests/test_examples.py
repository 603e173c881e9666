"""The examples run as they are, with fewer epochs and images, and print what they promise."""

import re
import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent / "examples"
PRINTED = {
    "convert_and_train": r"FitResult\(Bayesian.*'clean' of mine: .*worst-case accuracy",
    "own_defence": r"random mask.*5 weight samples.*worst-case accuracy.*no mask.*on the same 10 images",
    "from_autoattack": r"deterministic.*largest change: 0\.(1|09).*accuracy on them",
    "several_modes": r"three modes.*on the same 100 images.*exact mean over 3 members",
    "fine_tune": r"'clean' of checkpoint.*'clean' of fine-tuned.*'PGD-20' .* of fine-tuned",
    "regression": r"predicted .* \+- .*clean: mean squared error.*attacked: mean squared error",
}


def test_every_example_is_listed_and_tested() -> None:
    scripts = {path.stem for path in ROOT.glob("*.py")}
    assert scripts == set(PRINTED) == set(re.findall(r"\((\w+)\.py\)", (ROOT / "README.md").read_text()))


@pytest.mark.parametrize("name", PRINTED)
@pytest.mark.filterwarnings("ignore::advbnn.evaluation.accuracy.SmallSampleWarning")
def test_the_example_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ADVBNN_EXAMPLE", "short")
    torch.manual_seed(0)
    found = runpy.run_path(str(ROOT / f"{name}.py"))
    assert re.search(PRINTED[name], capsys.readouterr().out, re.DOTALL)
    if name == "from_autoattack":
        # the points are those that the audit scored
        accuracy = (found["model"](found["x_adv"]).argmax(1) == found["y"]).float().mean().item()
        assert accuracy == pytest.approx(found["found"].records[0].accuracy)
