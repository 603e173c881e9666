from collections.abc import Callable
from pathlib import Path

import pytest

from advbnn.evaluation.audit.attack_suite import LEVELS
from advbnn.evaluation.audit.worst_case import Audit
from advbnn.evaluation.records import Records
from advbnn.names import AUDIT_LEVELS

pytestmark = pytest.mark.usefixtures("tiny_audits")
QUICK = ["--level", "quick", "--device", "cpu"]
KEEPING = """
import torch
from torch import nn


class Noise(nn.Module):
    kept = 0.0

    def resample(self, seed):
        self.kept = 0.1 * torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(seed))

    def forward(self, x):
        return x + self.kept


def build():
    torch.manual_seed(0)
    return nn.Sequential(Noise(), nn.Flatten(), nn.Linear(64, 10)).eval()
"""


def test_levels_are_those_of_the_library() -> None:
    assert tuple(LEVELS) == AUDIT_LEVELS


def test_shows_attacks_worst_case_and_flags_and_keeps_the_record(runs: Path, advbnn: Callable[..., str]) -> None:
    few = ["--samples", 2, "--limit", 100, "--transfer-from", runs / "plain"]
    shown = advbnn("audit", runs / "robust", *QUICK, *few)
    for words in (
        "PGD-20, step 0.007",
        "from its mean network",
        "from plain",
        "survivors",
        "quick: worst-case accuracy",
    ):
        assert words in shown
    found = Audit(Records.load(runs / "robust" / "records.json"))
    (record,) = found.records
    # the radius of training
    assert (record.model.label, record.n, record.samples, record.threat.eps) == ("robust", 100, 2, 0.05)
    assert " ".join(str(found).splitlines()[1].split()) in shown


def test_quick_uses_two_hundred_images_for_each_radius(runs: Path, tmp_path: Path, advbnn: Callable[..., str]) -> None:
    out = tmp_path / "records.json"
    advbnn("audit", runs / "plain", *QUICK, "--eps", 0.1, "--eps", 0.05, "--out", out)
    assert [(record.threat.eps, record.n) for record in Records.load(out)] == [(0.05, 200), (0.1, 200)]


@pytest.mark.filterwarnings("default::advbnn.fast.fallback.EagerWarning")
def test_a_network_that_cannot_be_compiled_is_said_to_run_eagerly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advbnn: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(KEEPING)
    given = ["--model", "net.py:build", "--data", "digits", *QUICK, "--eps", 0.1, "--samples", 2, "--limit", 100]
    shown = advbnn("audit", *given, "--engine", "compile")
    assert shown.count("eagerly") == 1 and "warning: running the model eagerly" in shown
    (record,) = Records.load("records.json")
    assert record.versions["engine"] == "eager" and "resampled" in record.versions["why eager"]
    assert "eagerly" not in advbnn("audit", *given, "--out", "auto.json")  # on a CPU that is what auto chooses


def test_refusals(runs: Path, advbnn: Callable[..., str]) -> None:
    assert "give --eps" in advbnn("audit", runs / "plain", *QUICK, status=1)
    assert "'--limit': '0'" in advbnn("audit", runs / "robust", *QUICK, "--limit", 0, status=2)


def test_keeps_points_and_takes_them(runs: Path, tmp_path: Path, advbnn: Callable[..., str]) -> None:
    file, few = tmp_path / "points.safetensors", ["--limit", 100, "--samples", 2]
    advbnn("audit", runs / "robust", *QUICK, *few, "--save-points", file)
    for option in ("--points", "--adversarial"):
        out = tmp_path / f"{option}.json"
        assert "points: worst given" in advbnn("audit", runs / "robust", *QUICK, *few, option, file, "--out", out)
    scored = advbnn("evaluate", runs / "plain", *few, "--points", file, "--device", "cpu")
    assert "points: worst" in scored and "linf 0.05" in scored  # the radius that the file names
    refused = advbnn("audit", runs / "robust", *QUICK, *few, "--points", file, "--eps", 0.01, status=1)
    assert "leaves the linf ball" in refused
