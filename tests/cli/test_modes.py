"""The whole life of a run with several modes: trained, resumed, evaluated, audited and reported."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from advbnn.bayes.modes import Modes
from advbnn.evaluation.records import Records
from advbnn.training.loading import load_trained
from trained_nets import digits

CONFIG = Path(__file__).parents[2] / "configs" / "digits-modes.toml"


@pytest.mark.filterwarnings("default::advbnn.evaluation.accuracy.SingleMemberWarning")
@pytest.mark.usefixtures("tiny_audits")
def test_a_run_of_modes(tmp_path: Path, advbnn: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, quick = Path("modes"), ["architecture=mlp", "schedule.epochs=4", "attack.steps=2", "attack.threat.eps=0.05"]
    command = ["train", CONFIG, "--out", run, *(part for one in quick for part in ("--set", one)), "--device", "cpu"]
    shown = advbnn(*command)
    assert "mode 3/3, epoch 4/4" in shown and "finished: 3 modes" in shown

    # as if the process had been killed in the third mode
    shutil.rmtree(run / "modes" / "2"), (run / "model.safetensors").unlink()
    assert "2 of 3 modes" in (said := advbnn(*command, status=1)) and "resume" in said
    shown = advbnn("evaluate", run, "--attack", "clean", "--limit", 100, "--device", "cpu", "--out", "two.json")
    assert "not finished" in shown and [r.model.label for r in Records.load("two.json")] == ["modes (2 of 3 modes)"]
    assert "finished: 3 modes" in advbnn(*command, "--resume")
    assert "is finished: 3 modes" in advbnn(*command)

    model = load_trained(run).model
    assert isinstance(model, Modes) and model.support == 3
    Image.fromarray(digits().images[0, 0].numpy()).save("digit.png")
    assert "digit.png" in advbnn("predict", run, "digit.png", "--device", "cpu")
    few = ("--limit", 100, "--device", "cpu")
    shown = advbnn("evaluate", run, "--attack", "clean", "--attack", "pgd", "--steps", 3, "--seeds", 1, *few)
    assert "exact mean over its 3 members" in shown and shown.count("warning: pgd") == 1 and "--eot 3" in shown
    shown = advbnn("audit", run, "--level", "quick", "--out", "audit.json", *few)
    assert "worst-case" in shown
    (worst,) = Records.load("audit.json").where(kind="worst_case")
    assert worst.samples == worst.details["members"] == 3 and worst.details["inconclusive"] == [0]
    assert worst.model.kind == "Modes(3 x Sequential)"
    one = ("--no-exact", "--samples", 1, "--rule", "vote", "--attack", "clean", "--seeds", 1, "--out", "one.json", *few)
    advbnn("evaluate", run, *one)
    (clean,) = Records.load("one.json")
    assert (clean.samples, clean.rule) == (1, "vote")
    attacked = Records.load(run / "records.json").where(kind="attack")
    assert all(record.samples == 3 for record in attacked)
    one = run / "modes" / "0"
    advbnn("evaluate", one, "--attack", "clean", "--attack", "pgd", "--steps", 3, "--seeds", 1, *few)
    assert "modes and modes/modes/0" in advbnn("compare", run, one)
    advbnn("report", run, one, "audit.json", "--out", "report", "--images", 1, "--device", "cpu")
    report = Path("report", "report.md").read_text()
    assert all(part in report for part in ("Modes(3 x", "(modes/modes/0)", "all 3 members", "all of 3 members"))
    assert "3 to 20 weight samples" not in report  # attacks of the audit are on the exact mean, too
