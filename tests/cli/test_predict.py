import os
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from typer.testing import CliRunner

from advbnn.cli.app import app
from images import save
from trained_nets import digits


def test_prints_a_label_or_abstains(runs: Path, tmp_path: Path, advbnn: Callable[..., str]) -> None:
    noise = torch.randint(0, 256, (8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    save(tmp_path / "noise.png", noise.numpy())
    Image.fromarray(digits().images[0, 0].numpy()).save(tmp_path / "digit.png")
    command = ["predict", str(runs / "robust"), str(tmp_path / "digit.png"), str(tmp_path / "noise.png")]
    shown = CliRunner().invoke(app, [*command, "--coverage", "0.5", "--device", "cpu"]).output.splitlines()
    assert [Path(line.split()[0]).name for line in shown[1:3]] == ["digit.png", "noise.png"]
    assert shown[2].endswith("abstain")
    assert "of the 500 test images of digits" in shown[3]
    strange = os.fsdecode(b"gr\xfc\xdf.png")
    assert "not UTF-8" in advbnn("predict", runs / "robust", tmp_path / strange, "--device", "cpu", status=2)
    assert " abstain" not in advbnn(*command[:3], "--coverage", 1, "--device", "cpu")
    assert "--coverage must be" in advbnn(*command, "--coverage", 2, "--device", "cpu", status=1)
    assert "'--samples': '0'" in advbnn(*command, "--samples", 0, "--device", "cpu", status=2)
