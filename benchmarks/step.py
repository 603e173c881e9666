"""Time of a training step for engines, batch sizes and defences, against the arithmetic floor.

    python benchmarks/step.py --network vgg16 --out benchmarks/records/step.json
    python benchmarks/step.py --network small_cnn --image-size 8 --channels 1 --threads 1 --engines eager

Times whole steps on random images, after warm-up, and writes one record: the machine, the versions, and for each row
the median and range of milliseconds per step, seconds per epoch of 50,000 images, the share of the measured matrix
rate, the peak memory and the load average.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from common import SIZES, Rows, best_device, forward_flop, median_and_spread, peak_gib, reset_peak_memory, seconds_of

from advbnn import models
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.defenses.defense import Defense
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.rse import add_noise
from advbnn.training.engine import make_step
from advbnn.training.objective import RobustLoss

IMAGES = 50_000


def main() -> None:
    """Measure every combination."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=SIZES, default="vgg16")
    parser.add_argument("--engines", nargs="+", default=["graph"])
    parser.add_argument("--batches", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--defenses", nargs="+", default=["adv", "adv_bnn"])
    parser.add_argument("--image-size", type=int, help="in pixels; the usual size for the network by default")
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of a CPU; chosen by torch by default")
    parser.add_argument("--attack-steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--steps", type=int, default=10, help="steps per round")
    parser.add_argument("--out", type=Path, help="rows are appended to those in the file")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    shape = [options.channels, *[options.image_size or SIZES[options.network]] * 2]
    gflop = forward_flop(options.network, shape[-1], options.channels) / 1e9
    about = {"network": options.network, "image": shape, "threads": torch.get_num_threads()}
    rows = Rows(options.out, **about, attack_steps=options.attack_steps, forward_gflop_an_image=gflop)
    for defense in options.defenses:
        for engine in options.engines:
            for batch in options.batches:
                rows.add(measure(defense, engine, batch, options, rows.about))


def measure(name: str, engine: str, batch: int, options: argparse.Namespace, about: dict[str, Any]) -> dict[str, Any]:
    """One row: a defence, an engine and a batch size."""
    device = best_device()
    reset_peak_memory()
    torch.manual_seed(0)
    channels, side, _ = about["image"]
    net = models.build(options.network, classes=10, image_size=side, channels=channels).to(device)
    model = (bayesianize(net) if "bnn" in name else add_noise(net) if name == "rse" else net).train()
    attack = PGD(Threat("linf", 8 / 256), steps=options.attack_steps, step_size=0.007, random_start=False)
    defense = Defense(attack=attack if "adv" in name else None, objective=RobustELBO(kl_scope="classifier"))
    loss = RobustLoss(model, defense.objective, IMAGES)
    step = make_step(engine, loss, torch.optim.Adam(loss.parameters(), lr=1e-4), defense)
    x = torch.rand(batch, *about["image"], device=device)
    y = torch.randint(10, (batch,), device=device)
    setup = seconds_of(lambda: step(x, y, 0))
    for warm_up in range(3):
        step(x, y, warm_up)

    def one_round(number: int) -> None:
        for i in range(options.steps):
            step(x, y, number * options.steps + i)

    rounds = [seconds_of(lambda number=number: one_round(number)) / options.steps for number in range(options.repeats)]
    seconds, _ = median_and_spread(rounds)
    passes = (2 * options.attack_steps if "adv" in name else 0) + 3  # an input gradient costs one more forward pass
    flops = passes * about["forward_gflop_an_image"] * 1e9 * batch / seconds
    return {
        "defense": name,
        "engine": engine,
        "batch": batch,
        "ms_a_step": 1e3 * seconds,
        "ms_spread": median_and_spread(rounds, 1e-3)[1],
        "s_an_epoch": seconds * IMAGES / batch,
        "tflops": flops / 1e12,
        "share_of_matrix_rate": flops / 1e12 / about["matrix_tflops"],
        "setup_s": setup,
        "load_average": os.getloadavg()[0],
        **peak_gib(),
    }


if __name__ == "__main__":
    main()
