"""Two processes train like one, and a run survives the kill of a process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from advbnn.machine.processes import World, joined, world
from advbnn.training.loading import load_trained
from workers import average_together, run_all, start_apart, train_together


def outcome(folder: Path, size: int, rank: int) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / f"of{size}-{rank}.pt", weights_only=True)
    return state


@pytest.mark.parametrize("engine", ["eager", "compile"])
def test_two_processes_equal_one_with_the_joined_batch(tmp_path: Path, engine: str) -> None:
    """For the same weight noise, and without BatchNorm, by which each process normalises its own half of the batch."""
    run_all(train_together, 1, tmp_path, True, engine)
    run_all(train_together, 2, tmp_path, True, engine)
    alone, first, second = outcome(tmp_path, 1, 0), outcome(tmp_path, 2, 0), outcome(tmp_path, 2, 1)
    assert len(alone["gradients"]) == 6  # two epochs of 32, 32 and 27 images
    for step, (ours, theirs) in enumerate(zip(alone["gradients"], first["gradients"], strict=True)):
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5, msg=f"step {step}")
    for name, weight in alone["weights"].items():
        torch.testing.assert_close(first["weights"][name], weight, rtol=1e-4, atol=1e-5)
        assert torch.equal(first["weights"][name], second["weights"][name])
    assert first["metrics"] == second["metrics"]
    for name, value in alone["metrics"].items():
        one_image = 1.1 / 64 if name.endswith("accuracy") else 0.0  # clean accuracy is of two batches
        assert first["metrics"][name] == pytest.approx(value, rel=1e-4, abs=one_image), name


def test_each_process_has_its_own_noise_and_all_the_same_weights(tmp_path: Path) -> None:
    run_all(train_together, 1, tmp_path, False)
    run_all(train_together, 2, tmp_path, False)
    alone, first, second = outcome(tmp_path, 1, 0), outcome(tmp_path, 2, 0), outcome(tmp_path, 2, 1)
    for name, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][name])
    assert not torch.allclose(alone["gradients"][0][0], first["gradients"][0][0], rtol=1e-3)


def test_processes_start_from_the_weights_of_the_first_and_leave_no_thread_behind(tmp_path: Path) -> None:
    """A thread of the group that outlives it may abort the process when Python ends."""
    run_all(start_apart, 2, tmp_path)
    first, second = outcome(tmp_path, 2, 0), outcome(tmp_path, 2, 1)
    assert all(torch.equal(value, second["weights"][name]) for name, value in first["weights"].items())
    assert first["before"] != second["before"]
    if Path("/proc/self/task").exists():
        assert any("gloo" in name for name in first["threads within"])
        assert not any("gloo" in name for name in (*first["threads after"], *second["threads after"]))


def test_all_processes_end_with_the_same_statistics_of_averaged_weights(tmp_path: Path) -> None:
    run_all(average_together, 2, tmp_path)
    first, second = outcome(tmp_path, 2, 0), outcome(tmp_path, 2, 1)
    assert any("running_mean" in name for name in first)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


CONFIG = """
data = "digits"
defense = "adv_bnn"
architecture = "small_cnn"
batch_size = 300
save_every = 0.0
attack.steps = 1
schedule = { kind = "constant", epochs = 3 }
"""


def test_torchrun_restarts_a_killed_worker_and_the_run_goes_on(tmp_path: Path) -> None:
    config, out, script = tmp_path / "c.toml", tmp_path / "run", tmp_path / "script.py"
    config.write_text(CONFIG)
    script.write_text(f"from workers import train_until_killed\ntrain_until_killed({str(config)!r}, {str(out)!r})\n")
    root = Path(__file__).parents[1]
    paths = [str(root), str(root.parent / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("--max-restarts=1", "--monitor-interval=0.1", str(script)),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    trained = load_trained(out)
    assert trained.finished
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10, 15]  # five steps an epoch, however many processes
    assert json.loads((out / "run.json").read_text())["processes"] == 2
    log = (out / "log.txt").read_text()
    assert "step 7" in log and "resumed" in log


def test_one_process_alone_is_a_world_of_one() -> None:
    alone = world()
    assert alone == World(rank=0, size=1) and alone.leads
    assert alone.any(True) and not alone.any(False)
    assert alone.sum(torch.tensor(3.0)) == 3
    with joined("cpu") as (found, device):
        assert found == alone and device.type == "cpu"
