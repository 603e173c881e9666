"""Several modes against one network of the same training cost, with few training images of CIFAR-10, on a CPU.

    python benchmarks/modes_few_images.py one_12 modes5_12 --root /data/cifar10
    python benchmarks/modes_few_images.py one_8 modes5_8 --root /data/cifar10 --seed 1

Each row trains a convolutional network on the first 4,000 training images, of which 400 choose the epoch, by the recipe
of `configs/cifar10-modes5.toml` with smaller batches, at a radius of 8, 10, 12 or 16/255. It costs 200 epochs: one
network with all of them, or five of 40. Then it is judged as by judge.py. Training and judging resume.
"""

import argparse
from pathlib import Path

from judge import add_options, judge
from modes import CONFIG, place
from torch import nn

import advbnn
from advbnn.data import Splits
from advbnn.training import load_config
from advbnn.training.config import Config

IMAGES, EPOCHS = 4000, 200
RADII = (8, 10, 12, 16)
ROWS = {f"{kind}_{radius}": (count, radius) for radius in RADII for kind, count in (("one", 1), ("modes5", 5))}
"""Number of modes, and 255 times the training radius."""

SETTINGS = (
    "batch_size=128",
    "optimizer.lr=0.1",
    "averaging.decay=0.986",  # 2.5 epochs, as in the configuration
    "early_stopping.fraction=0.1",
)


def strided_cnn() -> nn.Sequential:
    """Four convolutions, three of which halve the image: 262,000 weights, and little arithmetic."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 32, 2), (32, 64, 2), (64, 128, 2), (128, 128, 1)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, 10))


def config_of(name: str) -> Config:
    """The configuration of a row."""
    count, radius = ROWS[name]
    attack = (f"attack.threat.eps={radius}/255", f"attack.step_size={radius / 2:g}/255")
    return load_config(CONFIG, [f"modes={count}", f"schedule.epochs={EPOCHS // count}", *attack, *SETTINGS])


def main() -> None:
    """Train and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--root", help="folder of CIFAR-10")
    parser.add_argument("--runs", type=Path, default=Path("runs/few-images"))
    parser.add_argument("--results", type=Path, default=Path("results/cifar10-few-images"))
    parser.add_argument("--seed", type=int, default=0)
    add_options(parser)
    given = parser.parse_args()
    data = advbnn.data.load("cifar10", root=given.root)
    few = Splits(data.train.subset(range(IMAGES)), data.test)
    for name in given.rows:
        how, out = config_of(name), place(name, given.seed)
        trained = advbnn.fit(
            strided_cnn(), few, how.defense, modes=how.modes, seed=given.seed, out=given.runs / out, resume=True
        )
        count, radius = ROWS[name]
        kind, seed = "one network" if count == 1 else "five modes", f", seed {given.seed}" if given.seed else ""
        label = f"{kind} of {EPOCHS // count} epochs, trained at {radius}/255{seed}"
        judge(trained.model, data.test, given, label, given.results / f"{out}.json")


if __name__ == "__main__":
    main()
