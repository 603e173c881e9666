"""The recipe for a few hundred images of one's own: short trainings on small sets, on a CPU.

    python benchmarks/small_data.py --out benchmarks/records/small-data-cpu.json
    python benchmarks/small_data.py --stl10 FOLDER --sets stl10 --set schedule.epochs=80

Sets: the digits; coloured shapes that are drawn here; 500 images of STL-10 and of ImageWoof at 32 pixels, if their
folders are given. Each row is one training of a small network, with clean accuracy and accuracy under averaged PGD-20
on at most 300 test images.
"""

import argparse
import time
from pathlib import Path

import torch
from common import Rows
from torch import Tensor

from advbnn import data
from advbnn.attacks import PGD
from advbnn.data import ImageSet, Splits
from advbnn.defenses.config_io import nested
from advbnn.defenses.profiles import defense
from advbnn.evaluation.accuracy import evaluate
from advbnn.training.config import parse_settings
from advbnn.training.loop import fit

SHAPES = ("circle", "square", "triangle")
TEST = 300


def shapes(count: int, seed: int, size: int = 32) -> ImageSet:
    """Circles, squares and triangles of random colour, place and size on a random dark ground."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % len(SHAPES)
    images = torch.stack([_drawn(int(label), size, generator) for label in labels])
    return ImageSet((images * 255).byte(), labels, SHAPES, "shapes")


def _drawn(label: int, size: int, generator: torch.Generator) -> Tensor:
    numbers = torch.rand(9, generator=generator)
    radius = size * (0.18 + 0.14 * numbers[0])
    x0, y0 = radius + (size - 2 * radius) * numbers[1:3]
    y, x = torch.meshgrid(torch.arange(size) + 0.5 - y0, torch.arange(size) + 0.5 - x0, indexing="ij")
    circle, square = x**2 + y**2 < radius**2, torch.maximum(x.abs(), y.abs()) < 0.9 * radius
    triangle = (y < 0.9 * radius) & (y > 2 * x.abs() - 1.1 * radius)
    inside = (circle, square, triangle)[label]
    colour, ground = 0.4 + 0.6 * numbers[3:6], 0.3 * numbers[6:9]
    return torch.where(inside, colour[:, None, None], ground[:, None, None])


def small(name: str, folders: dict[str, Path | None]) -> Splits[ImageSet]:
    """A small training set and its test set."""
    if name == "digits":
        return data.load("digits")
    if name == "shapes":
        return Splits(shapes(450, seed=0), shapes(TEST, seed=1))
    folder = folders[name]
    if folder is None:
        raise SystemExit(f"give --{name} FOLDER")
    found = data.load("stl10", folder, verify=False) if name == "stl10" else data.load(folder, size=32)
    train = torch.randperm(len(found.train), generator=torch.Generator().manual_seed(0))[:500]
    test = torch.randperm(len(found.test), generator=torch.Generator().manual_seed(0))[:TEST]
    return Splits(_at_32(found.train.subset(train)), _at_32(found.test.subset(test)))


def _at_32(images: ImageSet) -> ImageSet:
    resized = torch.nn.functional.interpolate(images.images.float(), size=(32, 32), mode="area")
    return ImageSet(resized.round().byte(), images.labels, images.classes, images.name)


def main() -> None:
    """Train and evaluate on every set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["digits", "shapes"])
    parser.add_argument("--defense", default="adv_bnn")
    parser.add_argument("--like", default="images", help="the set whose numbers are used")
    parser.add_argument("--stl10", type=Path)
    parser.add_argument("--imagewoof", type=Path)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="a change of the recipe, key=value")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = Rows(options.out, threads=torch.get_num_threads())
    changes = nested(parse_settings(options.settings))
    for name in options.sets:
        splits = small(name, {"stl10": options.stl10, "imagewoof": options.imagewoof})
        train, test = splits.train, splits.test.subset(range(min(TEST, len(splits.test))))
        how = defense(options.defense, options.like, **changes)
        for seed in options.seeds:
            net = how.build(classes=len(train.classes), shape=train.shape, seed=seed)
            begin = time.perf_counter()
            result = fit(net, splits, how, seed=seed)
            seconds = time.perf_counter() - begin
            threat = (how.attack or defense("adv_bnn", options.like).attack).threat
            attack = PGD(threat, steps=20, eot=5)
            clean, robust = evaluate(result.model, test, {"clean": None, "PGD-20": attack}, seeds=1)
            rows.add(
                {
                    "set": name,
                    "training_images": len(train),
                    "classes": len(train.classes),
                    "defense": options.defense,
                    "like": options.like,
                    "changed": options.settings,
                    "alpha": how.objective.alpha,
                    "seed": seed,
                    "steps": result.steps,
                    "seconds": round(seconds, 1),
                    "eps": threat.eps,
                    "clean": clean.accuracy,
                    "robust": robust.accuracy,
                    "n": clean.n,
                }
            )


if __name__ == "__main__":
    main()
