"""The five defences on the embedded digits, trained and attacked; writes results/digits.json.

    python benchmarks/digits.py

Each network is trained as configs/digits-*.toml says, with seed 0. An image counts as correct if the mean probability
over 20 draws that no attack has seen picks its class. A few minutes on two cores.
"""

import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import advbnn
from advbnn.attacks import PGD, Attack, paper_pgd
from advbnn.config import load_config
from advbnn.data import ImageSet, to_float
from advbnn.predict import predict
from advbnn.profiles import DEFENSES
from advbnn.threat import Threat
from advbnn.train import fit

ROOT = Path(__file__).parent.parent
SAMPLES, ATTACK_SEED, SCORE_SEED = 20, 1, 2
ATTACKS: dict[str, Attack] = {
    "the authors' PGD-20, 0.1": paper_pgd(0.1, steps=20),
    "PGD-20, 0.1": PGD(Threat("linf", 0.1), steps=20),
    "EOT-PGD-20 over 10 draws, 0.1": PGD(Threat("linf", 0.1), steps=20, eot=10),
    "PGD-20, 0.15": PGD(Threat("linf", 0.15), steps=20),
    "EOT-PGD-20 over 10 draws, 0.15": PGD(Threat("linf", 0.15), steps=20, eot=10),
}


def accuracy(model: nn.Module, test: ImageSet, attack: Attack | None) -> float:
    """The share of the test images that the ensemble classifies correctly after the attack."""
    x = to_float(test.images)
    x_adv = x if attack is None else attack(model, x, test.labels, ATTACK_SEED)
    label = predict(model, x_adv, samples=SAMPLES, seed=SCORE_SEED).label
    return round((label == test.labels).double().mean().item(), 4)


def measure(name: str) -> dict[str, Any]:
    """Train one defence and attack it."""
    config = load_config(ROOT / "configs" / f"digits-{name}.toml")
    splits = config.load_data()
    begun, begun_cpu = time.perf_counter(), time.process_time()
    net = config.defense.build(classes=10, shape=splits.train.shape, seed=config.seed)
    with tempfile.TemporaryDirectory() as folder:
        model = fit(net, splits, config.defense, seed=config.seed, out=Path(folder) / "run", progress=True).model
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - begun_cpu
    accuracies = {title: accuracy(model, splits.test, attack) for title, attack in ATTACKS.items()}
    return {
        "defense": repr(config.defense),
        "seed": config.seed,
        "training_seconds": round(seconds, 1),
        "training_cpu_seconds": round(cpu_seconds, 1),
        "accuracy": {"clean": accuracy(model, splits.test, None), **accuracies},
    }


def main() -> None:
    """Measure all five and write the record."""
    record = {
        "command": "python benchmarks/digits.py",
        "data": "digits: 1,297 images to train on, 500 of other writers to test on",
        "n": 500,
        "samples": SAMPLES,
        "seeds": {"attack": ATTACK_SEED, "score": SCORE_SEED},
        "attacks": {title: repr(attack) for title, attack in ATTACKS.items()},
        "versions": {"advbnn": advbnn.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "results": {name: measure(name) for name in DEFENSES},
    }
    target = ROOT / "results" / "digits.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n")
    for name, result in record["results"].items():  # type: ignore[attr-defined]
        print(name, result["accuracy"], f"{result['training_seconds']} s")


if __name__ == "__main__":
    main()
