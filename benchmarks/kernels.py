"""Where the time of a training step goes: the kernels of an Adv-BNN step recorded as a CUDA graph.

    python benchmarks/kernels.py --batch 128 --out benchmarks/records/kernels-h200.json

Needs a GPU. Kernels may run side by side, so their times can add up to more than the step takes.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import torch
from measuring import Rows
from torch.profiler import ProfilerActivity, profile

from advbnn import models
from advbnn.attacks import PGD
from advbnn.defenses import Defense
from advbnn.engine import make_step
from advbnn.objective import RobustELBO, RobustLoss
from advbnn.posterior import bayesianize
from advbnn.threat import Threat

STEPS = 2


def main() -> None:
    """Profile a few steps and write their kernels, the costliest first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--kernels", type=int, default=40, help="how many to write")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    attack = PGD(Threat("linf", 8 / 256), steps=10, step_size=0.007, random_start=False)
    defense = Defense(attack=attack, objective=RobustELBO(kl_scope="classifier"))
    loss = RobustLoss(bayesianize(models.build("vgg16").cuda()).train(), defense.objective, 50_000)
    step = make_step("graph", loss, torch.optim.Adam(loss.parameters(), lr=1e-4), defense)
    x = torch.rand(options.batch, 3, 32, 32, device="cuda")
    y = torch.randint(10, (options.batch,), device="cuda")
    for seed in range(5):
        step(x, y, seed)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for seed in range(STEPS):
            step(x, y, seed)
        torch.cuda.synchronize()
    times: dict[str, list[float]] = defaultdict(list)
    for event in found.events():
        if event.device_type.name == "CUDA":
            times[event.name[:90]].append(event.device_time)
    everything = [microseconds for kernel in times.values() for microseconds in kernel]
    rows = Rows(
        options.out,
        network="vgg16",
        batch=options.batch,
        ms_in_kernels_a_step=sum(everything) / STEPS / 1e3,
        kernels_a_step=len(everything) / STEPS,
    )
    for name, kernel in sorted(times.items(), key=lambda item: -sum(item[1]))[: options.kernels]:
        rows.add({"kernel": name, "calls_a_step": len(kernel) / STEPS, "ms_a_step": sum(kernel) / STEPS / 1e3})


if __name__ == "__main__":
    main()
