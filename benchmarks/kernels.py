"""The GPU kernels of a training step or an attack on a network, captured as CUDA graphs, and their times.

    python benchmarks/kernels.py --out benchmarks/records/kernels-h200.json
    python benchmarks/kernels.py --network resnet18 --plain --batch 256 --out benchmarks/records/kernels-resnet18.json
    python benchmarks/kernels.py --of loop --out benchmarks/records/kernels-loop.json
    python benchmarks/kernels.py --of attack --precision full --batch 1000 --out benchmarks/records/kernels-attack.json

Needs a GPU. A step of `training` is an update with its attack; a step of `loop` includes everything else in `fit`, from
batches to metrics; a step of `attack` is one iteration with its weight sample. Kernels may run concurrently, so their
times can add up to more than the time of the step.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from common import Rows, seconds_of
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from advbnn import models
from advbnn.attacks import PGD, paper_pgd
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.data import ImageSet, Splits
from advbnn.defenses.defense import Defense
from advbnn.defenses.objective import RobustELBO
from advbnn.fast.acceleration import accelerate
from advbnn.machine.processes import ALONE
from advbnn.training.engine import make_step
from advbnn.training.objective import RobustLoss
from advbnn.training.state import TrainingState

STEPS = 2  # of training
ITERATIONS = 20  # of the attack
IN_THE_LOOP = 50  # steps of the loop; enough to measure the clean accuracy as often as `fit` does


def main() -> None:
    """Profile a few steps and write their kernels, the most expensive first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=("training", "loop", "attack"), default="training")
    parser.add_argument("--network", choices=models.NAMES, default="vgg16")
    parser.add_argument("--plain", action="store_true", help="adversarial training instead of Adv-BNN")
    parser.add_argument("--precision", choices=("full", "bf16"), default="full", help="of the attack")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--kernels", type=int, default=40, help="how many to write")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    work, steps = {"training": training, "loop": loop, "attack": attack}[options.of](options)
    work()
    seconds = seconds_of(work)
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
        network=options.network,
        defense="adv" if options.plain else "adv_bnn",
        of=options.of,
        batch=options.batch,
        precision=options.precision if options.of == "attack" else "bf16",
        ms_a_step=seconds / steps * 1e3,
        ms_in_kernels_a_step=sum(everything) / steps / 1e3,
        kernels_a_step=len(everything) / steps,
    )
    for name, kernel in sorted(times.items(), key=lambda item: -sum(item[1]))[: options.kernels]:
        rows.add({"kernel": name, "calls_a_step": len(kernel) / steps, "ms_a_step": sum(kernel) / steps / 1e3})


def network(options: argparse.Namespace) -> nn.Module:
    """The network with or without random weights."""
    net = models.build(options.network).cuda()
    return net if options.plain else bayesianize(net)


def defense(**options: int) -> Defense:
    """Adv-BNN for CIFAR-10 with the settings of the authors' code; a network without random weights has no KL."""
    attack = PGD(Threat("linf", 8 / 256), steps=10, step_size=0.007, random_start=False)
    return Defense(attack=attack, objective=RobustELBO(kl_scope="classifier"), **options)


def loop(options: argparse.Namespace) -> tuple[Callable[[], None], int]:
    """Steps within `fit`, on augmented batches of images on the device."""
    count = 10 * IN_THE_LOOP * options.batch
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
    examples = ImageSet(images, torch.arange(count) % 10, tuple("0123456789"), "cifar10").to("cuda")
    model = network(options).train()
    run = TrainingState(model, Splits(examples, examples), defense(batch_size=options.batch), 0, "graph", ALONE)

    def work() -> None:
        for x, y in islice(run.rest_of_epoch(), IN_THE_LOOP):
            run.advance(x, y)

    work()
    return work, IN_THE_LOOP


def training(options: argparse.Namespace) -> tuple[Callable[[], None], int]:
    """Steps on one batch."""
    loss = RobustLoss(network(options).train(), defense().objective, 50_000)
    step = make_step("graph", loss, torch.optim.Adam(loss.parameters(), lr=1e-4), defense())
    x, y = examples(options.batch)
    for seed in range(5):
        step(x, y, seed)

    def work() -> None:
        for seed in range(STEPS):
            step(x, y, seed)

    return work, STEPS


def attack(options: argparse.Namespace) -> tuple[Callable[[], None], int]:
    """The paper's attack on one batch, as `advbnn evaluate` runs it."""
    fast = accelerate(network(options).eval(), "graph", options.precision)
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
