"""Where the time of a training step goes, or of an attack: the kernels of an Adv-BNN recorded as CUDA graphs.

    python benchmarks/kernels.py --out benchmarks/records/kernels-h200.json
    python benchmarks/kernels.py --of attack --precision full --batch 1000 --out benchmarks/records/kernels-attack.json

Needs a GPU. A step of training is an update with its attack; that of an attack one iteration, with the draw it takes.
Kernels may run side by side, so their times can add up to more than the step takes.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from measuring import Rows
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from advbnn import models
from advbnn.accelerate import accelerate
from advbnn.attacks import PGD, paper_pgd
from advbnn.defenses import Defense
from advbnn.engine import make_step
from advbnn.objective import RobustELBO, RobustLoss
from advbnn.posterior import bayesianize
from advbnn.threat import Threat

STEPS = 2
"""Steps of training that are profiled."""

ITERATIONS = 20
"""Those of the attack."""


def main() -> None:
    """Profile a few steps and write their kernels, the costliest first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=("training", "attack"), default="training")
    parser.add_argument("--precision", choices=("full", "bf16"), default="full", help="of the attack")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--kernels", type=int, default=40, help="how many to write")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    work, steps = attack(options) if options.of == "attack" else training(options)
    work()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = defaultdict(list)
    for event in found.events():
        if event.device_type.name == "CUDA":
            times[event.name[:90]].append(event.device_time)
    everything = [microseconds for kernel in times.values() for microseconds in kernel]
    rows = Rows(
        options.out,
        network="vgg16",
        of=options.of,
        batch=options.batch,
        precision=options.precision if options.of == "attack" else "bf16",
        ms_a_step=seconds / steps * 1e3,
        ms_in_kernels_a_step=sum(everything) / steps / 1e3,
        kernels_a_step=len(everything) / steps,
    )
    for name, kernel in sorted(times.items(), key=lambda item: -sum(item[1]))[: options.kernels]:
        rows.add({"kernel": name, "calls_a_step": len(kernel) / steps, "ms_a_step": sum(kernel) / steps / 1e3})


def training(options: argparse.Namespace) -> tuple[Callable[[], None], int]:
    """Adv-BNN's step on one batch."""
    attack = PGD(Threat("linf", 8 / 256), steps=10, step_size=0.007, random_start=False)
    defense = Defense(attack=attack, objective=RobustELBO(kl_scope="classifier"))
    loss = RobustLoss(bayesianize(models.build("vgg16").cuda()).train(), defense.objective, 50_000)
    step = make_step("graph", loss, torch.optim.Adam(loss.parameters(), lr=1e-4), defense)
    x, y = examples(options.batch)
    for seed in range(5):
        step(x, y, seed)

    def work() -> None:
        for seed in range(STEPS):
            step(x, y, seed)

    return work, STEPS


def attack(options: argparse.Namespace) -> tuple[Callable[[], None], int]:
    """The paper's attack on one batch, as `advbnn evaluate` runs it."""
    fast = accelerate(bayesianize(models.build("vgg16").cuda()).eval(), "graph", options.precision)
    pgd = paper_pgd(0.035, steps=ITERATIONS)
    x, y = examples(options.batch)
    pgd(fast, x, y, 0)

    def work() -> None:
        pgd(fast, x, y, 0)

    return work, ITERATIONS


def examples(count: int) -> tuple[Tensor, Tensor]:
    """Random images and labels."""
    return torch.rand(count, 3, 32, 32, device="cuda"), torch.randint(10, (count,), device="cuda")


if __name__ == "__main__":
    main()
