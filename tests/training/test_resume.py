"""A run that is killed, again and again, ends where it would have ended."""

import json
import os
import random
import signal
import time
from pathlib import Path

import torch

from advbnn.training.loading import load_trained
from workers import processes, train_resumable


def last_step(out: Path) -> int:
    """The newest checkpoint that is there right now."""
    return max((int(p.name.removeprefix("step-")) for p in (out / "checkpoints").glob("step-*")), default=0)


def test_killed_at_random_steps_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    out, chance = tmp_path / "run", random.Random(0)
    reached = 0
    for _ in range(3):
        worker = processes.Process(target=train_resumable, args=(out,))
        worker.start()
        target = reached + chance.randint(2, 8)
        deadline = time.monotonic() + 60
        while last_step(out) < target and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.05)  # anywhere in a step, in a checkpoint, in a line of metrics
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        assert worker.exitcode == -signal.SIGKILL
        assert last_step(out) >= target
        reached = last_step(out)
    assert reached < 30, "killed before the end, or this test shows nothing"

    worker = processes.Process(target=train_resumable, args=(out,))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    uninterrupted = train_resumable(None)
    resumed = load_trained(out).model
    assert uninterrupted.state_dict().keys() == resumed.state_dict().keys()
    for name, tensor in uninterrupted.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], tensor), name

    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == [4, 5, 9, 10, 14, 15, 19, 20, 24, 25, 29, 30]
