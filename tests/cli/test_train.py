from collections.abc import Callable
from pathlib import Path

from advbnn.training.config import load_config
from advbnn.training.loading import load_trained


def test_a_run_is_trained_found_finished_and_refused_with_other_settings(
    tmp_path: Path, advbnn: Callable[..., str]
) -> None:
    path, out = tmp_path / "run.toml", tmp_path / "out"
    path.write_text('data = "digits"\ndefense = "bnn"\narchitecture = "mlp"\n')
    command = ["train", path, "--out", out, "--set", "schedule.epochs=1", "--set", "batch_size=500", "--device", "cpu"]
    assert "finished after 3 steps" in advbnn(*command)
    assert "is finished" in advbnn(*command)
    refused = advbnn(*command, "--set", "seed=1", status=1)
    assert "error:" in refused and "seed = 0 there, 1 now" in refused
    assert load_trained(out).config == load_config(path, ["schedule.epochs=1", "batch_size=500"])
