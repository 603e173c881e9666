"""Time of a training step for engines, batch sizes and defences, against the arithmetic floor.

    python benchmarks/step.py --network vgg16 --out benchmarks/records/step.json
    python benchmarks/step.py --network small_cnn --image-size 8 --channels 1 --threads 1 --engines eager
    python benchmarks/step.py --network resnet18 --batches 128 256 --defenses adv adv+trades adv+awp adv+ema adv+idbh

A defence is `none`, `adv`, `bnn`, `adv_bnn` or `rse`, with any of the options `+trades`, `+awp`, `+ema`, `+idbh`,
`+cutmix`, `+rebat`. Times whole steps on random images, after warm-up, and writes one record: the machine, the
versions, and for each row the median and range of milliseconds per step, seconds per epoch of 50,000 images, the share
of the measured matrix rate, the peak memory and the load average.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import SIZES, Rows, best_device, forward_flop, median_and_spread, peak_gib, reset_peak_memory, seconds_of

from advbnn import models
from advbnn.attacks import PGD
from advbnn.attacks.threat import Threat
from advbnn.bayes.mean_field import bayesianize
from advbnn.data import Batches, from_tensors, named_augmentation
from advbnn.data.cutmix import CutMix
from advbnn.defenses.defense import Averaging, Defense
from advbnn.defenses.objective import RobustELBO
from advbnn.defenses.rse import add_noise
from advbnn.names import ENGINES
from advbnn.training.averaging import WeightAverage
from advbnn.training.engine import make_step
from advbnn.training.objective import RobustLoss

IMAGES = 50_000
DEFENSES = ("none", "adv", "bnn", "adv_bnn", "rse")
EXTRAS = ("trades", "awp", "ema", "idbh", "cutmix", "rebat")


def defense_name(text: str) -> str:
    """A known defence with known options; an unknown one would be timed as training without any."""
    name, *extras = text.split("+")
    if name not in DEFENSES or not {*extras} <= {*EXTRAS}:
        expected = f"one of {', '.join(DEFENSES)}, with options such as {'adv+trades'!r} among {', '.join(EXTRAS)}"
        raise argparse.ArgumentTypeError(f"{text!r} is unknown; expected {expected}")
    return text


def main() -> None:
    """Measure every combination."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=SIZES, default="vgg16")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["graph"])
    parser.add_argument("--batches", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--defenses", nargs="+", type=defense_name, default=["adv", "adv_bnn"])
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
    row_name, (name, *extras) = name, name.split("+")
    device = best_device()
    reset_peak_memory()
    torch.manual_seed(0)
    channels, side, _ = about["image"]
    net = models.build(options.network, classes=10, image_size=side, channels=channels).to(device)
    model = (bayesianize(net) if "bnn" in name else add_noise(net) if name == "rse" else net).train()
    attack = PGD(Threat("linf", 8 / 256), steps=options.attack_steps, step_size=0.007, random_start=False)
    if "trades" in extras:
        attack = replace(attack, random_start=True)
    defense = Defense(
        attack=attack if "adv" in name else None,
        objective=RobustELBO(kl_scope="classifier", trades=6.0 if "trades" in extras else None),
        awp=0.005 if "awp" in extras else None,
        augment="idbh_weak" if "idbh" in extras else "cutmix" if "cutmix" in extras else False,
        averaging=Averaging(decay=0.999, consistency=1.0) if "rebat" in extras else None,
    )
    loss = RobustLoss(model, defense.objective, IMAGES)
    step = make_step(engine, loss, torch.optim.Adam(loss.parameters(), lr=1e-4), defense)
    average = WeightAverage(model, decay=0.999) if "ema" in extras or "rebat" in extras else None
    teacher = average if "rebat" in extras else None
    images = torch.randint(256, (batch * options.steps, *about["image"]), dtype=torch.uint8, device=device)
    labels = torch.randint(10, (len(images),), device=device)
    augmentations = named_augmentation(defense.augment, "random")
    cutmix = CutMix() if "cutmix" in extras else None
    batches = Batches(from_tensors(images, labels, classes=10), batch, augmentations=augmentations, cutmix=cutmix)

    def one_round(number: int) -> None:
        for i, (x, y) in enumerate(batches.epoch(number)):
            step(x, y, number * options.steps + i, teacher=teacher)
            if average is not None:
                average.update(model)

    setup = seconds_of(lambda: step(*next(batches.epoch(0)), 0, teacher=teacher))
    one_round(0)

    rounds = [seconds_of(lambda number=number: one_round(number)) / options.steps for number in range(options.repeats)]
    seconds, _ = median_and_spread(rounds)
    passes = (2 * options.attack_steps if "adv" in name else 0) + 3  # an input gradient costs one more forward pass
    if "rebat" in extras:
        passes += 1
    if "trades" in extras:
        passes += 4
    if "awp" in extras:
        passes += 6 if "trades" in extras else 3
    flops = passes * about["forward_gflop_an_image"] * 1e9 * batch / seconds
    return {
        "defense": row_name,
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
