"""What tests of evaluation run in processes of their own, and the attack that they share."""

import os
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from advbnn.attacks.threat import Threat
from advbnn.cli.app import app
from advbnn.evaluation.accuracy import evaluate
from advbnn.evaluation.audit import LEVELS
from advbnn.evaluation.records import Records
from trained_nets import blank, digits

OPTIONS = {"samples": 3, "seeds": 2, "batch_size": 25, "label": "blank"}


@dataclass(frozen=True)
class Shift:
    """Moves every pixel by eps, up or down at random, and counts its calls; may end the process at one of them."""

    threat: Threat = field(default_factory=lambda: Threat("linf", 0.1))
    calls: list[int] = field(default_factory=list, repr=False, compare=False)
    killed_at: int | None = field(default=None, repr=False, compare=False)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, seed: int | None = None) -> Tensor:
        self.calls.append(len(x))
        if len(self.calls) == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        generator = torch.Generator().manual_seed(0 if seed is None else seed)
        sign = torch.rand(x.shape, generator=generator).sub(0.5).sign()
        return self.threat.project(x + self.threat.eps * sign, x)


def evaluate_until_killed(out: Path) -> None:
    """Ends by itself, the hard way, in the third of five batches."""
    evaluate(blank(), digits(), {"clean": None, "shift": Shift(killed_at=6)}, **OPTIONS, out=out)


def evaluate_as_one_of_two(rank: int, folder: Path) -> None:
    store = torch.distributed.FileStore(str(folder / "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    attack = Shift()
    records = evaluate(blank(), digits(), {"clean": None, "shift": attack}, **OPTIONS, out=folder / "records.json")
    records.save(folder / f"of-{rank}.json")
    (folder / f"calls-{rank}").write_text(str(len(attack.calls)))
    torch.distributed.destroy_process_group()


def save_one_by_one(path: Path, start: Any, names: list[str]) -> None:
    """Adds copies of the first record in a file to it, under these names, as soon as all processes have started."""
    (record, *_) = Records.load(path)
    start.wait()
    for name in names:
        Records([replace(record, name=name)]).save(path)


def measure_for_the_board(rank: int, size: int, port: int, folder: Path) -> None:
    """One of the processes of `advbnn leaderboard measure`, of which the first takes a second to write records."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.chdir(folder)
    torch.set_num_threads(1)
    less: dict[str, Any] = {"steps": (1, 2), "square_queries": 4, "nes_queries": 30, "max_weight_samples": 20}
    LEVELS["quick"] = replace(LEVELS["quick"], **less)
    save = Records.save

    def late(*arguments: Any, **options: Any) -> None:
        time.sleep(1.0)
        save(*arguments, **options)

    Records.save = late  # type: ignore[method-assign]
    given = ["--model", "net.py:plain", "--data", "digits", "--eps", "0.05", "--limit", "8", "--batch-size", "4"]
    app(["leaderboard", "measure", "mc_dropout", *given, "--level", "quick", "--only", "audit", "--device", "cpu"])
