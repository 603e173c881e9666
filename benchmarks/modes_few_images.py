"""Several modes against one network of the same training cost, with few training images of CIFAR-10, on a CPU.

    python benchmarks/modes_few_images.py one_12 modes5_12 --root /data/cifar10
    python benchmarks/modes_few_images.py one_8 modes5_8 --root /data/cifar10 --seed 1
    python benchmarks/modes_few_images.py long_one_8 long_wide_8 long_modes3_8 --root /data/cifar10

Each row trains a convolutional network on the first 4,000 training images, of which 400 choose the epoch, by the recipe
of `configs/cifar10-modes5.toml` with smaller batches, at a radius of 8, 10, 12 or 16/255. It costs 200 epochs: one
network with all of them, or five of 40. The `long` rows cost 450: one network, one of three times the operations with a
third of the epochs, or three modes. Then it is judged as by judge.py. Training and judging resume.
"""

import argparse
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from judge import add_options, judge
from modes import CONFIG, place
from torch import nn

import advbnn
from advbnn.bayes.protocol import members
from advbnn.data import Splits
from advbnn.training import load_config
from advbnn.training.config import Config

IMAGES = 4000
NARROW = (32, 64, 128, 128)
WIDE = (56, 112, 224, 224)
"""Channels: three times the operations of the narrow network."""


@dataclass(frozen=True)
class Row:
    """`modes` networks of `epochs` epochs each, trained at `radius` / 255."""

    radius: int
    modes: int = 1
    epochs: int = 200
    channels: tuple[int, ...] = NARROW

    @property
    def title(self) -> str:
        """The name of the row in records."""
        wide = "wide " if self.channels == WIDE else ""
        kind = f"one {wide}network" if self.modes == 1 else f"{COUNTS[self.modes]} modes"
        return f"{kind} of {self.epochs} epochs, trained at {self.radius}/255"


COUNTS = {3: "three", 5: "five"}
ROWS = {
    name: row
    for radius in (8, 10, 12, 16)
    for name, row in (
        (f"one_{radius}", Row(radius)),
        (f"modes5_{radius}", Row(radius, modes=5, epochs=40)),
        (f"long_one_{radius}", Row(radius, epochs=450)),
        (f"long_wide_{radius}", Row(radius, epochs=150, channels=WIDE)),
        (f"long_modes3_{radius}", Row(radius, modes=3, epochs=150)),
    )
}

SETTINGS = (
    "batch_size=128",
    "optimizer.lr=0.1",
    "averaging.decay=0.986",  # 2.5 epochs, as in the configuration
    "early_stopping.fraction=0.1",
)


def strided_cnn(channels: tuple[int, ...]) -> nn.Sequential:
    """Four convolutions, three of which halve the image: 262,000 weights if narrow, and little arithmetic."""
    layers: list[nn.Module] = []
    for (inputs, outputs), stride in zip(pairwise((3, *channels)), (2, 2, 2, 1), strict=True):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * 4 * 4, 10))


def config_of(row: Row) -> Config:
    """The configuration of a row."""
    attack = (f"attack.threat.eps={row.radius}/255", f"attack.step_size={row.radius / 2:g}/255")
    return load_config(CONFIG, [f"modes={row.modes}", f"schedule.epochs={row.epochs}", *attack, *SETTINGS])


def main() -> None:
    """Train and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--root", help="folder of CIFAR-10")
    parser.add_argument("--runs", type=Path, default=Path("runs/few-images"))
    parser.add_argument("--results", type=Path, default=Path("results/cifar10-few-images"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", action="store_true", help="judge the single modes, too")
    add_options(parser)
    given = parser.parse_args()
    data = advbnn.data.load("cifar10", root=given.root)
    few = Splits(data.train.subset(range(IMAGES)), data.test)
    for name in given.rows:
        row, out = ROWS[name], place(name, given.seed)
        how = config_of(row)
        trained = advbnn.fit(
            strided_cnn(row.channels),
            few,
            how.defense,
            modes=how.modes,
            seed=given.seed,
            out=given.runs / out,
            resume=True,
        )
        label = row.title + (f", seed {given.seed}" if given.seed else "")
        judge(trained.model, data.test, given, label, given.results / f"{out}.json")
        for number, mode in enumerate(members(trained.model) if given.each else ()):
            judge(mode.net, data.test, given, f"mode {number} of {label}", given.results / f"{out}-mode_{number}.json")


if __name__ == "__main__":
    main()
