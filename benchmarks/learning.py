"""Training curves of the fast and the eager engine: the same short training with both, for several seeds.

    python benchmarks/learning.py --engines eager graph --seeds 0 1 2

Adv-BNN with the settings of the authors' code on CIFAR-10, but with a short attack and schedule, because the eager
engine computes in float32. The metrics of each training are written to results/engines/ENGINE-seedN, the accuracy of
the trained network to results/engines/ENGINE-seedN.json.
"""

import argparse
import json
import logging
from pathlib import Path

import torch

from advbnn import data
from advbnn.attacks import PGD, paper_pgd
from advbnn.attacks.threat import Threat
from advbnn.defenses.profiles import defense
from advbnn.defenses.schedules import Stages
from advbnn.evaluation.accuracy import evaluate
from advbnn.training.loop import fit

ROOT = Path(__file__).parent.parent
EPS = 8 / 256


def main() -> None:
    """Train and evaluate every engine and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["eager", "graph"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=50_000, help="training images")
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--epochs", type=int, nargs="+", default=[5, 2], help="of each stage of the schedule")
    parser.add_argument("--attack-steps", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "engines")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    splits = data.load("cifar10")
    train = data.Splits(splits.train.subset(range(options.images)), splits.test)
    steps = options.attack_steps
    attack = PGD(Threat("linf", EPS), steps=steps, step_size=2.5 * EPS / steps, random_start=False)
    how = defense("adv_bnn", "cifar10", attack=attack, schedule=Stages(epochs=tuple(options.epochs)))
    attacks = {"clean": None, "PGD-20": paper_pgd(EPS), "PGD-20, averaged": PGD(Threat("linf", EPS), steps=20, eot=10)}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for seed in options.seeds:
        for engine in options.engines:
            name = f"{engine}-seed{seed}"
            net = how.build(classes=10, shape=(3, 32, 32), seed=seed)
            run, epoch = options.out / name, -(-options.images // how.batch_size)
            shared = {"seed": seed, "resume": True, "device": device, "engine": engine}
            result = fit(net, train, how, out=run, log_every=epoch, **shared)
            records = evaluate(
                result.model,
                splits.test,
                attacks,
                rows=range(options.test_images),
                seeds=1,
                label=name,
                batch_size=1000,
                out=options.out / f"{name}.json",
                command="python benchmarks/learning.py",
            )
            print(json.dumps({name: {record.name: record.accuracy for record in records}}), flush=True)
            for heavy in (*run.glob("checkpoints/**/*"), *run.glob("*.safetensors")):
                if heavy.is_file():
                    heavy.unlink()


if __name__ == "__main__":
    main()
