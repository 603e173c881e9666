import json
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
    assert " abstain" not in advbnn(*command[:3], "--coverage", 1, "--device", "cpu")
    assert "--coverage must be" in advbnn(*command, "--coverage", 2, "--device", "cpu", status=1)
    assert "'--samples': '0'" in advbnn(*command, "--samples", 0, "--device", "cpu", status=2)


def test_a_folder_as_json_lines(runs: Path, tmp_path: Path) -> None:
    test = digits()
    for row in range(3):
        folder = tmp_path / "new" / str(row % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(test.images[row, 0].numpy()).save(folder / f"{row}.png")
    (tmp_path / "new" / "notes.txt").write_text("no image")
    command = ["predict", str(runs / "robust"), str(tmp_path / "new"), "--device", "cpu", "--samples", "5"]
    result = CliRunner().invoke(app, [*command, "--json"])
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [Path(line["image"]).name for line in lines] == ["0.png", "2.png", "1.png"] and "Abstains" in result.stderr
    for line in lines:
        assert abs(sum(line["probabilities"].values()) - 1) < 1e-4 and set(line["probabilities"]) == set(test.classes)
        assert line["probabilities"][line["label"]] == line["probability"] and isinstance(line["abstain"], bool)
    table = CliRunner().invoke(app, command).stdout.splitlines()
    assert [line.split()[1] for line in table[1:4]] == [line["label"] for line in lines]
    (tmp_path / "empty").mkdir()
    assert "without images" in CliRunner().invoke(app, [*command[:2], str(tmp_path / "empty")]).output
