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


def test_a_sweep_trains_each_run_once_and_ends_with_their_table(tmp_path: Path, advbnn: Callable[..., str]) -> None:
    path, out = tmp_path / "run.toml", tmp_path / "out"
    path.write_text('data = "digits"\ndefense = "bnn"\narchitecture = "mlp"\nbatch_size = 500\n')
    command = ["train", path, "--out", out, "--set", "schedule.epochs=1", "--set", "objective.alpha=0.1,0.02"]
    command += ["--device", "cpu", "--jobs", "1"]
    first = advbnn(*command, "--seeds", "2")
    assert first.count("finished after 3 steps") == 4 and "(4 of 4 done)" in first
    assert all(f"{out / f'objective.alpha={alpha},seed={seed}'}" in first for alpha in (0.1, 0.02) for seed in (0, 1))
    assert first.count("±") == 2
    more = advbnn(*command, "--seeds", "3")
    assert (more.count("finished after 3 steps"), more.count("nothing to do")) == (2, 4)
    assert "alpha must be" in advbnn(*command[:4], "--set", "objective.alpha=0.1,-2", status=1)
    assert "--jobs" in advbnn(*command, "--cluster", "tcp://127.0.0.1:9", status=2)
