"""Functions that tests run in other processes, which import them from here."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from advbnn import data
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.cli.train import train
from advbnn.data import ImageSet, Splits
from advbnn.defenses.defense import Averaging, Defense
from advbnn.defenses.profiles import defense
from advbnn.defenses.schedules import Stages
from advbnn.machine.processes import world
from advbnn.randomness import seeded
from advbnn.training import state as training_module
from advbnn.training.loop import fit
from advbnn.training.mode_plan import ModePlan
from advbnn.training.state import TrainingState
from advbnn.training.step import step_seed

# not forked: torch has threads, and a child forked beside them may hang
processes = multiprocessing.get_context("spawn")


def digits(count: int = 96) -> Splits[ImageSet]:
    """The first few digits."""
    whole = data.load("digits")
    return Splits(whole.train.subset(range(count)), whole.test)


def resumable() -> Defense:
    """BatchNorm, Adam with restarts, random starts and an average: everything that a checkpoint restores."""
    return defense(
        "adv_bnn", batch_size=20, attack={"steps": 2}, schedule=Stages(epochs=(2, 2, 2)), averaging=Averaging(decay=0.9)
    )


def train_resumable(out: Path | None) -> nn.Module:
    """A run of 30 steps, with a checkpoint after each; resumes where it stopped."""
    torch.set_num_threads(1)
    value = resumable()
    net = value.build(classes=10, shape=(1, 8, 8), seed=0)
    return fit(net, digits(), value, seed=5, out=out, resume=out is not None, save_every=0.0, log_every=4).model


def linear() -> nn.Module:
    """Without BatchNorm, whose batch statistics depend on the shard."""
    with seeded(0):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def together() -> Defense:
    """Without a random start, whose noise depends on the shard; in l2, where a step is continuous in the gradient."""
    attack = PGD(Threat("l2", 1.0), steps=2, step_size=0.5, random_start=False)
    return defense("adv_bnn", attack=attack, batch_size=32, optimizer="sgd", schedule=Stages(epochs=(2,)))


def train_together(rank: int, size: int, folder: Path, same_noise: bool, engine: str = "eager") -> None:
    """One of `size` processes that train together; leaves its weights and gradients in `folder`."""
    torch.set_num_threads(1)
    torch.compile = lambda function, **_: function  # type: ignore[assignment]  # what is compiled is tested elsewhere
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    if same_noise:
        training_module.step_seed = lambda seed, epoch, step, rank: step_seed(seed, epoch, step)  # type: ignore[assignment]
    team, value = world(), together()
    training = TrainingState(value.wrap(linear()).train(), digits(91), value, seed=0, engine=engine, processes=team)
    gradients: list[list[torch.Tensor]] = []
    training.optimizer.register_step_pre_hook(
        lambda optimizer, *_: gradients.append([p.grad.clone() for p in optimizer.param_groups[0]["params"]])
    )
    while not training.over:
        for x, y in training.rest_of_epoch():
            training.advance(x, y)
    metrics = training.read_step_metrics()
    state = {"weights": training.model.state_dict(), "gradients": gradients, "metrics": metrics}
    torch.save(state, folder / f"of{size}-{rank}.pt")
    if size > 1:
        dist.destroy_process_group()


def start_apart(rank: int, size: int, folder: Path) -> None:
    """One of `size` processes that train together, each with initial weights of its own."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    value = together()
    model = value.wrap(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with seeded(rank):
        nn.init.normal_(next(model.parameters()))
    before = next(model.parameters()).sum().item()
    fit(model, digits(91), value, engine="eager")
    within = _threads()
    dist.destroy_process_group()
    state = {"weights": model.state_dict(), "before": before, "threads within": within, "threads after": _threads()}
    torch.save(state, folder / f"of{size}-{rank}.pt")


def _threads() -> list[str]:
    """The names of the threads of this process; none where the system does not tell."""
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


def average_together(rank: int, size: int, folder: Path) -> None:
    """One of `size` processes that average the weights of a network with BatchNorm; leaves its state in `folder`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    value = defense(
        "adv", batch_size=32, attack={"steps": 1}, schedule=Stages(epochs=(1,)), averaging=Averaging(decay=None)
    )
    model = fit(value.build(classes=10, shape=(1, 8, 8), seed=0), digits(91), value, engine="eager").model
    torch.save(model.state_dict(), folder / f"of{size}-{rank}.pt")
    dist.destroy_process_group()


def train_modes(out: Path | None) -> nn.Module:
    """Three modes of 10 steps each, with a checkpoint after each step; resumes where it stopped."""
    torch.set_num_threads(1)
    value = defense("adv_bnn", architecture="mlp", batch_size=20, attack={"steps": 2}, schedule=Stages(epochs=(1, 1)))
    net = value.build(classes=10, shape=(1, 8, 8), seed=0)
    return fit(net, digits(), value, modes=3, seed=5, out=out, resume=out is not None, save_every=0.0).model


def train_modes_until_killed(out: Path) -> None:
    """As `train_modes`, killed in the third mode."""
    advance, done = TrainingState.advance, []

    def fatal(self: TrainingState, x: torch.Tensor, y: torch.Tensor) -> None:
        advance(self, x, y)
        done.append(1)
        if len(done) == 24:
            os.kill(os.getpid(), 9)

    TrainingState.advance = fatal  # type: ignore[method-assign]
    train_modes(out)


def modes_together(rank: int, size: int, folder: Path) -> None:
    """One of `size` processes that train two snapshots together; leaves the weights in `folder`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    value = defense("adv", architecture="mlp", batch_size=32, attack={"steps": 1}, schedule=Stages(epochs=(1,)))
    net = value.build(classes=10, shape=(1, 8, 8), seed=0)
    plan = ModePlan(count=2, how="snapshots")
    model = fit(net, digits(91), value, modes=plan, out=folder / "run", engine="eager").model
    again = fit(net, digits(91), value, modes=plan, out=folder / "run", engine="eager").model  # finished, for both
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(model.parameters(), again.parameters(), strict=True))
    torch.save(model.state_dict(), folder / f"{rank}.pt")
    dist.destroy_process_group()


def run_all(target: Callable[..., Any], size: int, *arguments: Any) -> None:
    """Runs target(rank, size, *arguments) in `size` processes."""
    team = [processes.Process(target=target, args=(rank, size, *arguments)) for rank in range(size)]
    for member in team:
        member.start()
    for member in team:
        member.join(120)
        assert member.exitcode == 0, f"exit code {member.exitcode}"


def train_until_killed(config: str, out: str) -> None:
    """For torchrun: the first attempt of rank 1 kills itself in mid-run."""
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        advance = TrainingState.advance

        def fatal(self: TrainingState, x: torch.Tensor, y: torch.Tensor) -> None:
            advance(self, x, y)
            if self.total_steps == 7:
                os.kill(os.getpid(), 9)

        TrainingState.advance = fatal  # type: ignore[method-assign]
    train(Path(config), out=Path(out), resume=True, device="cpu")
